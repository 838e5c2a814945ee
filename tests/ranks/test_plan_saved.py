"""Bytes that a rank of a tensor-parallel group keeps for backward, predicted without torch and really kept."""

import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trireme.cluster import parse_cluster
from trireme.graph import read_config
from trireme.interpret import interpreting, plan_tensor_parallel, shard_parameters
from trireme.plan import Layout, Workload, section_saved
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))

_SEQS, _SEQ_LEN = 2, 32
_SIZES = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 96,
}
_TOLERANCE = 0.01
"""Counters, masks and labels that a model keeps beside its activations, large at these sizes."""


def _kept_bytes(model, plan, inputs):
    """Distinct storages that autograd keeps of a forward pass, parameters aside."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages, alive = {}, []

    def pack(tensor):
        alive.append(tensor)  # else a freed storage's address would be met again
        if tensor.untyped_storage().data_ptr() not in weights:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with interpreting(model, plan), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(**inputs)
    return sum(storages.values())


def _predicted_bytes(graph, *, tp):
    workload = Workload(
        model=graph,
        cluster=parse_cluster(f"h100:{tp}"),
        layout=Layout(tp=tp),
        global_batch_seqs=_SEQS,
        seq_len=_SEQ_LEN,
        precision="fp32",
        kernels="flash",
    )
    saved = [section_saved(workload, section) for section in graph.sections()]
    shared = {name: size for each in saved for name, size in each.shared}
    return sum(each.kept for each in saved) + sum(shared.values())


def _check(name):
    model, graph = _build(name)
    inputs = {"input_ids": torch.randint(96, (_SEQS, _SEQ_LEN)), "use_cache": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = plan_tensor_parallel(
            model, inputs, degree=dist.get_world_size(), loss_fn=lambda out: out.logits.float().logsumexp(-1).sum()
        )
    shard_parameters(model, plan, rank=dist.get_rank())
    kept = _kept_bytes(model, plan, inputs)
    assert _predicted_bytes(graph, tp=dist.get_world_size()) == pytest.approx(kept, rel=_TOLERANCE), name


def _build(name):
    import transformers

    if name == "gpt2":
        config = transformers.GPT2Config(
            n_layer=4,
            n_embd=64,
            n_head=8,
            vocab_size=96,
            n_positions=64,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = getattr(transformers, f"{name}Config")(**_SIZES)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
    values = {**config.to_dict(), "architectures": [type(model).__name__]}
    return model.float(), read_config(values)


@on_ranks(4, timeout_s=240)
def test_what_a_rank_keeps_for_backward_is_what_the_planner_says():
    for name in ("Llama", "Qwen3", "gpt2"):  # four ranks, two key heads: those are kept whole
        _check(name)
