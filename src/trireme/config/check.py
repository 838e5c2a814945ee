"""What sections must agree on. Each check looks at the sections it names and at nothing else.

A contradiction is a problem; a value that was given and can have no effect here is a notice, never
silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from trireme.config.checkpoint import CheckpointSection
from trireme.config.communication import CommunicationSection
from trireme.config.data import DataSection
from trireme.config.layout import LayoutSection
from trireme.config.model import ModelSection
from trireme.config.observe import ObserveSection
from trireme.config.offload import OffloadSection
from trireme.config.origin import Key
from trireme.config.root import RunConfig
from trireme.config.schema import Section
from trireme.config.train import LENGTH_KEYS, PrecisionSection, TrainSection

Purpose = Literal["train", "module", "data", "show"]
"""What the settings are for: ``module`` brings its own model, ``data`` needs sources alone, ``show`` nothing."""

_SHAPE_KEYS = tuple(
    name for name in ModelSection.model_fields if name not in ("name", "factory", "factory_args", "path", "init_from")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A sentence about one key: ``name`` of the page ``config``, filled with ``values``."""

    at: Key
    name: str
    values: dict[str, Any]
    is_notice: bool = False


def check_config(config: RunConfig, *, purpose: Purpose = "train") -> list[Finding]:
    """Return everything that contradicts or has no effect, for what the settings are to be used for."""
    if purpose == "show":
        return []
    findings = list(check_data(config.data))
    if purpose in ("train", "module"):
        findings += check_length(config.train)
        findings += check_batch(config.train)
        findings += check_rate(config.train)
        findings += check_model(config.model) if purpose == "train" else check_no_model(config.model)
        findings += check_seq_len(config.model, config.data)
        findings += check_precision(config.precision)
        findings += check_evaluation(config)
        findings += check_observe(config.observe)
        findings += check_layout(config.layout)
        findings += check_checkpoint(config.checkpoint)
        findings += check_recompute(config)
        findings += check_wire(config.communication)
        findings += check_offload(config.offload)
    return findings


def check_data(data: DataSection) -> Iterator[Finding]:
    """Sources there are, and nothing that another key makes void."""
    if not data.sources:
        yield _problem("data.sources", "no_sources")
    if data.eval_sources:
        yield from _void(data, "data", "eval_fraction", because="data.eval_sources")
    if data.tokenizer is not None:
        yield from _void(data, "data", "tokenizer_vocab_size", because="data.tokenizer")


def check_length(train: TrainSection) -> Iterator[Finding]:
    """Exactly one key says how long the run is."""
    given = [name for name in LENGTH_KEYS if getattr(train, name) is not None]
    if not given:
        yield _problem("train", "no_length")
    elif len(given) > 1:
        keys = ", ".join(f"train.{name} = {getattr(train, name)}" for name in given)
        yield _problem(f"train.{given[-1]}", "two_lengths", keys=keys, clear=f"train.{given[0]}=")


def check_batch(train: TrainSection) -> Iterator[Finding]:
    """A micro-batch is no larger than the batch; a last smaller one is said."""
    micro, total = train.microbatch_seqs, train.global_batch_seqs
    if micro is None:
        return
    if micro > total:
        yield _problem("train.microbatch_seqs", "microbatch_above", micro=micro, total=total)
    elif total % micro:
        yield _notice("train.microbatch_seqs", "microbatch_rest", micro=micro, total=total, rest=total % micro)


def check_rate(train: TrainSection) -> Iterator[Finding]:
    """Warm-up is said once and fits; keys of another schedule are said to have no effect."""
    if train.warmup_steps is not None and train.warmup_tokens is not None:
        yield _problem("train.warmup_tokens", "two_warmups", steps=train.warmup_steps, tokens=train.warmup_tokens)
    for name, limit in (("warmup_steps", train.max_steps), ("warmup_tokens", train.max_tokens)):
        warmup = getattr(train, name)
        if warmup is not None and limit is not None and warmup > limit:
            yield _problem(f"train.{name}", "warmup_above", key=f"train.{name}", warmup=warmup, limit=limit)
    schedule = f"train.schedule = {train.schedule}"
    if train.schedule != "wsd":
        yield from _void(train, "train", "decay_ratio", because=schedule)
    if train.schedule == "constant":
        yield from _void(train, "train", "min_lr_ratio", because=schedule)
    if train.on_nonfinite != "skip":
        yield from _void(train, "train", "max_nonfinite", because=f"train.on_nonfinite = {train.on_nonfinite}")
    if train.on_spike == "ignore":
        yield from _void(train, "train", "spike_sigmas", because="train.on_spike = ignore")
    if "rollback" not in (train.on_nonfinite, train.on_spike):
        for name in ("rollback_leave_out_steps", "max_rollbacks"):
            yield from _void(train, "train", name, because="neither train.on_nonfinite nor train.on_spike = rollback")


def check_model(model: ModelSection) -> Iterator[Finding]:
    """Exactly one key says which module; a shape is that of a named decoder and is a possible one."""
    given = [name for name in ("name", "factory", "path") if getattr(model, name) is not None]
    if not given:
        yield _problem("model", "no_model")
    elif len(given) > 1:
        keys = ", ".join(f"model.{name} = {getattr(model, name)}" for name in given)
        yield _problem(f"model.{given[-1]}", "two_models", keys=keys, clear=f"model.{given[0]}=")
    elif model.name is None:
        for name in _SHAPE_KEYS:
            if getattr(model, name) is not None:
                yield _problem(f"model.{name}", "shape_without_name", key=f"model.{name}", given=f"model.{given[0]}")
    if model.factory is not None and not _is_reference(model.factory):
        yield _problem("model.factory", "not_reference", key="model.factory", value=model.factory)
    if model.factory_args and model.factory is None:
        yield _problem("model.factory_args", "args_without_factory")
    yield from _check_heads(model)


def check_no_model(model: ModelSection) -> Iterator[Finding]:
    """A module is given as an object, so no key may name another or shape it."""
    for name in type(model).model_fields:
        if name != "init_from":
            yield from _void(model, "model", name, because="module=", is_problem=True)


def _check_heads(model: ModelSection) -> Iterator[Finding]:
    heads, kv_heads, width = model.num_heads, model.num_kv_heads, model.d_model
    if heads and kv_heads and heads % kv_heads:
        yield _problem("model.num_kv_heads", "heads_divide", heads=heads, kv_heads=kv_heads)
    if heads and width and width % heads:
        yield _problem("model.d_model", "width_divides", width=width, heads=heads)
    elif heads and width and (width // heads) % 2:
        yield _problem("model.d_model", "head_width_even", width=width, heads=heads, head_width=width // heads)


def check_seq_len(model: ModelSection, data: DataSection) -> Iterator[Finding]:
    """The sequences fit the model."""
    if model.max_seq_len is not None and data.seq_len > model.max_seq_len:
        yield _problem("data.seq_len", "seq_len_above", seq_len=data.seq_len, max_seq_len=model.max_seq_len)


def check_precision(precision: PrecisionSection) -> Iterator[Finding]:
    """Keys of fp16 are said to have no effect on other formats."""
    because = f"precision.policy = {precision.policy}"
    if precision.policy not in ("fp16", "fp16_master"):
        yield from _void(precision, "precision", "init_loss_scale", because=because)
        yield from _void(precision, "precision", "loss_scale_growth_steps", because=because)
    if precision.policy in ("auto", "fp32"):
        yield from _void(precision, "precision", "fallback", because=because)
    if precision.policy != "bf16_pure":
        yield from _void(precision, "precision", "stochastic_rounding", because=because, is_problem=True)


def check_evaluation(config: RunConfig) -> Iterator[Finding]:
    """Keys of evaluation are said to have no effect where nothing is held out."""
    if config.data.eval_fraction > 0 or config.data.eval_sources:
        return
    for name in ("eval_every_steps", "eval_seqs"):
        yield from _void(config.train, "train", name, because="data.eval_fraction = 0")


def check_observe(observe: ObserveSection) -> Iterator[Finding]:
    """How often lines are shown means nothing where none are."""
    if observe.progress == "off":
        yield from _void(observe, "observe", "every_steps", because="observe.progress = off")


def check_checkpoint(checkpoint: CheckpointSection) -> Iterator[Finding]:
    """How often is said once."""
    if checkpoint.every_steps is not None:
        because = f"checkpoint.every_steps = {checkpoint.every_steps}"
        yield from _void(checkpoint, "checkpoint", "mtbf_hours", because=because)


def check_wire(wire: CommunicationSection) -> Iterator[Finding]:
    """Keys of a code or of replicas' steps are said to have no effect without it."""
    because = f"communication.compress = {wire.compress}"
    for name, needs in (("powersgd_rank", "powersgd"), ("topk_ratio", "topk")):
        if wire.compress != needs:
            yield from _void(wire, "communication", name, because=because)
    if wire.compress == "none":
        yield from _void(wire, "communication", "warmup_steps", because=because)
    for name in ("outer", "outer_lr", "outer_momentum"):
        if wire.local_steps == 1:
            yield from _void(wire, "communication", name, because="communication.local_steps = 1")
        elif name != "outer" and wire.outer == "average":
            yield from _void(wire, "communication", name, because="communication.outer = average")


def check_layout(layout: LayoutSection) -> Iterator[Finding]:
    """A layout in one line stands alone."""
    if layout.text is not None and layout.given:
        keys = ", ".join(f"layout.{name}" for name in layout.given)
        yield _problem("layout.text", "layout_twice", text=layout.text, keys=keys)


def check_recompute(config: RunConfig) -> Iterator[Finding]:
    """Two sections don't say two things, and which layers means nothing where none recompute."""
    recompute, of_layout = config.recompute, config.layout.recompute
    if recompute.mode is not None and of_layout is not None and recompute.mode != of_layout:
        yield _problem("recompute.mode", "recompute_twice", mode=recompute.mode, layout=of_layout)
    mode = recompute.mode or of_layout
    # A layout in one line or a plan.json is read later, and may say it too.
    if mode in (None, "none") and (mode is not None or config.layout.text is None):
        for name in ("every", "layers"):
            yield from _void(recompute, "recompute", name, because="recompute.mode = none")
    if mode == "auto":
        for name in ("every", "layers"):
            yield from _void(recompute, "recompute", name, because="recompute.mode = auto", is_problem=True)
    elif config.layout.text is None:
        yield from _void(recompute, "recompute", "memory_bytes", because=f"recompute.mode = {mode or 'none'}")


def check_offload(offload: OffloadSection) -> Iterator[Finding]:
    """Keys of what stays where it is are said to have no effect."""
    if offload.optimizer != "disk":
        yield from _void(offload, "offload", "path", because=f"offload.optimizer = {offload.optimizer}")
    if offload.activations == "none":
        yield from _void(offload, "offload", "activations_min_bytes", because="offload.activations = none")


def _is_reference(text: str) -> bool:
    place, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        return False
    return place.endswith(".py") or all(part.isidentifier() for part in place.split("."))


def _void(section: Section, prefix: str, name: str, *, because: str, is_problem: bool = False) -> Iterator[Finding]:
    """A notice, or a problem, if ``name`` was given a value of its own that ``because`` leaves without effect."""
    if getattr(section, name) != type(section).model_fields[name].default:
        say_it = _problem if is_problem else _notice
        yield say_it(f"{prefix}.{name}", "no_effect", key=f"{prefix}.{name}", because=because)


def _problem(at: str, name: str, /, **values: Any) -> Finding:
    return Finding(at=tuple(at.split(".")), name=name, values=values)


def _notice(at: str, name: str, /, **values: Any) -> Finding:
    return Finding(at=tuple(at.split(".")), name=name, values=values, is_notice=True)
