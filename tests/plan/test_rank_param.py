"""Parameters of a rank: the stage's, cut by tensor and expert parallelism, exactly as the interpreter cuts them."""

import functools
import math
import sys
import warnings
from pathlib import Path

import pytest

from trireme.cluster import parse_cluster
from trireme.graph import count_model_params, find_model, read_config
from trireme.plan import Layout, Workload, parse_layout, rank_params

_FAMILIES = ("qwen3", "gpt2", "phi3", "bert", "mixtral", "t5")
"""A norm per head, fused matrices, a transform before the head, experts, tables shared by two stacks."""


_DEGREE = 4
"""More ranks than some of the families have key heads."""


def _workload(model, layout, **settings):
    ranks = layout.world_size
    nodes = f"h100:{min(8, ranks)}x{max(1, ranks // 8)}"
    given = {"global_batch_seqs": 1024, "seq_len": 128, "cluster": parse_cluster(nodes)}
    return Workload(model=model, layout=layout, **{**given, **settings})


def _numel(workload, rank):
    return sum(param.numel for param in rank_params(workload, rank))


def test_every_family_is_cut_as_the_interpreter_cuts_it():
    torch = pytest.importorskip("torch")
    sys.path.insert(0, str(Path(__file__).parents[1] / "ranks"))
    import interpret_models

    from trireme.interpret import plan_tensor_parallel

    def loss(outputs, labels):
        logits = outputs.logits
        return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

    for name in _FAMILIES:
        module = interpret_models.build(name)
        graph = read_config({**module.config.to_dict(), "architectures": [type(module).__name__]})
        inputs = {"input_ids": torch.ones(2, 8, dtype=torch.long)}
        if name != "bert":
            inputs["use_cache"] = False
        if name == "t5":
            inputs["decoder_input_ids"] = inputs["input_ids"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = plan_tensor_parallel(
                module, inputs, degree=_DEGREE, loss_fn=functools.partial(loss, labels=inputs["input_ids"])
            )
        workload = _workload(graph, Layout(tp=_DEGREE), seq_len=8)
        for rank in range(_DEGREE):
            held = {param.name: param.numel for param in rank_params(workload, rank)}
            built = {
                key: math.prod(cut.local_shape(rank=rank))
                for key, cut in plan.parameters.items()
                if key not in plan.ties
            }
            assert held == built, (name, rank)


@pytest.mark.parametrize("model", ["gpt2", "llama-3-8b", "qwen3-8b", "deepseek-v3", "t5-small", "mixtral-8x7b"])
def test_one_rank_holds_the_whole_model(model):
    graph = find_model(model)
    assert _numel(_workload(graph, Layout()), 0) == count_model_params(graph).total


@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b", "bloom-176b"])
def test_stages_share_out_all_parameters_and_tied_ones_are_on_both_ends(model):
    graph = find_model(model)
    owners = {tie.owner for tie in graph.ties}
    for layout in ("pp=4", "pp=4,vp=2,schedule=interleaved", "pp=4,schedule=zbv"):
        parsed = parse_layout(layout).layout
        workload = _workload(graph, parsed)
        held = sum(_numel(workload, rank) for rank in range(4))
        tied = sum(param.numel for param in rank_params(workload, 0) if param.name in owners)
        is_twice = parsed.schedule != "zbv"  # its first rank has both ends, so one copy will do
        assert held == count_model_params(graph).total + (tied if is_twice else 0)


def test_an_odd_vocabulary_gives_the_first_ranks_a_row_more():
    graph = find_model("gpt2")  # 50257 rows
    rows = [
        next(param.shape[0] for param in rank_params(_workload(graph, Layout(tp=4)), rank) if "wte" in param.name)
        for rank in range(4)
    ]
    assert rows == [12565, 12564, 12564, 12564]


def test_key_heads_that_are_too_few_stay_whole_on_every_rank():
    graph = find_model("llama-3-8b")  # 8 key heads
    for degree, held in ((8, 1024 // 8), (16, 1024)):
        params = {param.name: param.shape for param in rank_params(_workload(graph, Layout(tp=degree)), 0)}
        assert params["model.layers.0.self_attn.k_proj.weight"] == (held, 4096)


def test_experts_are_spread_whole_over_ranks_or_cut_in_width_without_expert_parallelism():
    graph = find_model("mixtral-8x7b")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    for text, shape in (
        ("dp=8,ep=8", (1, 28672, 4096)),
        ("tp=4", (8, 7168, 4096)),
        ("tp=2,dp=2,ep=4", (2, 28672, 4096)),
    ):
        params = {param.name: param for param in rank_params(_workload(graph, parse_layout(text).layout), 0)}
        assert params[name].shape == shape


def test_a_rank_of_1024_is_counted_as_fast_as_one_of_2():
    graph = find_model("llama-3-405b")
    layout = parse_layout("tp=8,pp=16,dp=8,zero1").layout
    counts = [_numel(_workload(graph, layout), rank) for rank in range(0, 1024, 64)]
    assert sum(counts) * 8 >= count_model_params(graph).total
    assert max(counts) < 1.3 * min(counts)
