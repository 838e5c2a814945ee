"""Samples that a model writes while it is being trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from torch import nn

from trireme.config import RunConfig
from trireme.data import Tokenizer
from trireme.job.loading import LoadedRun, begins_with_bos
from trireme.job.sampling import Sampling
from trireme.job.writing import Continuation, prompt_ids
from trireme.models import context_length
from trireme.observe import SampleReport

Sampler = Callable[[int], Iterator[SampleReport]]


def build_sampler(module: nn.Module, *, tokenizer: Tokenizer, config: RunConfig, run_dir: Path) -> Sampler | None:
    """Return what ``fit`` calls to have the model write: one text a prompt; None if there is nothing to begin with.

    The draw does not depend on the step, so the samples of a run can be compared line by line.
    """
    loaded = _as_loaded(module, tokenizer=tokenizer, config=config, run_dir=run_dir)
    prompts = config.train.sample_prompts or (("",) if loaded.adds_bos else ())
    sampling = Sampling(max_new_tokens=config.train.sample_tokens, seed=config.run.seed)

    def write(step: int) -> Iterator[SampleReport]:
        for prompt in prompts:
            continuation = Continuation(loaded, prompt_ids(loaded, prompt), sampling=sampling)
            text = "".join(continuation)
            yield SampleReport(
                step=step,
                prompt=prompt,
                text=text,
                num_tokens=continuation.num_tokens,
                temperature=sampling.temperature,
                seed=sampling.seed,
            )

    return write if prompts else None


def _as_loaded(module: nn.Module, *, tokenizer: Tokenizer, config: RunConfig, run_dir: Path) -> LoadedRun:
    return LoadedRun(
        path=run_dir,
        model=module,
        tokenizer=tokenizer,
        config=config,
        step=None,
        chat_template=None,
        adds_bos=begins_with_bos(tokenizer, config=config),
        stop_ids=() if tokenizer.eos_id is None else (tokenizer.eos_id,),
        max_seq_len=context_length(module) or config.data.seq_len,
    )
