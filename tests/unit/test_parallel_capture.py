"""What one run on absent tensors tells about a module: blocks, ties, readers, costs, crossings."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from trireme.errors import LayoutError
from trireme.parallel import capture, choose_cuts

sys.path.insert(0, str(Path(__file__).parents[1] / "ranks"))
import pipeline_models as models


def _captured(name):
    return capture(models.build(name), models.batch(name, rows=2), call=models.call)


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("gpt", [f"h.{number}" for number in range(4)]),
        ("library", [f"layers.{number}" for number in range(4)]),
        ("two_towers", ["left.0", "left.1", "right.0", "right.1"]),
        ("long_skips", ["down.0", "down.1", "up.0", "up.1"]),
        ("hourglass", ["stages.0.blocks.0", "stages.0.blocks.1", "stages.1.blocks.0", "stages.1.blocks.1"]),
        ("plain", ["0", "1", "3", "4"]),
        ("hf_t5", [f"{side}.block.{number}" for side in ("encoder", "decoder") for number in range(4)]),
        ("hf_vit", [f"vit.layers.{number}" for number in range(4)]),
    ],
)
def test_layers_of_every_stack_are_found_in_the_order_in_which_they_run(name, blocks):
    assert list(_captured(name).blocks) == blocks


def test_ties_are_found_and_read_where_they_are_used():
    trace = _captured("gpt")
    assert trace.ties == {"lm_head.weight": "wte.weight"}
    assert trace.reads["wte.weight"] == (0, 4)
    assert trace.reads["h.2.attn.qkv.weight"] == (3,)
    assert trace.reads["ln_f.weight"] == (4,)


def test_parameters_tied_by_storage_alone_count_as_tied():
    model = models.build("gpt")
    model.lm_head.weight = nn.Parameter(model.wte.weight.detach())
    assert capture(model, models.batch("gpt"), call=models.call).ties == {"lm_head.weight": "wte.weight"}


def test_blocks_that_run_again_are_read_where_they_run_again():
    trace = _captured("shared_depth")
    assert trace.blocks == ("layers.0", "layers.1")
    assert trace.reads["layers.0.attn.qkv.weight"] == (1, 2)


def test_one_tensor_crosses_in_a_decoder_and_several_behind_an_encoder():
    assert {len(crossing) for crossing in _captured("hf_llama").crossings} == {1}
    crossings = _captured("hf_t5").crossings
    assert [len(crossing) for crossing in crossings] == [1, 2, 2, 2, 2, 4, 4, 4]
    assert crossings[1][1].shape == (1, models.HEADS, 12, 12)


def test_costs_are_those_of_the_matrix_products():
    trace = _captured("gpt")
    tokens, width = 2 * 12, models.WIDTH
    products = 2 * tokens * (4 * width * width + 2 * width * 48)
    attention = 2 * 2 * tokens * 12 * width
    assert trace.costs[2].flops == products + attention
    assert trace.costs[4].flops - trace.costs[3].flops == 2 * tokens * width * models.VOCAB
    held = sum(cost.parameter_bytes for cost in trace.costs)
    assert held == sum(each.numel() * 8 for each in models.build("gpt").parameters())


def test_capturing_changes_nothing():
    model = models.build("hf_bert")
    before = {name: (id(each), each.clone()) for name, each in model.state_dict(keep_vars=True).items()}
    classes = [type(module) for module in model.modules()]
    capture(model, models.batch("hf_bert"), call=models.call)
    after = model.state_dict(keep_vars=True)
    assert [type(module) for module in model.modules()] == classes
    assert all(id(after[name]) == known and torch.equal(after[name], value) for name, (known, value) in before.items())


def test_a_module_on_meta_is_captured_like_a_real_one():
    with torch.device("meta"):
        model = models.OWN["gpt"]()
    trace = capture(model, models.batch("gpt", rows=2), call=models.call)
    real = _captured("gpt")
    assert (trace.blocks, trace.reads, trace.ties) == (real.blocks, real.reads, real.ties)
    assert [cost.flops for cost in trace.costs] == [cost.flops for cost in real.costs]


def test_alike_layers_are_walked_once():
    calls = []

    class Counted(models.Block):
        def forward(self, x):
            calls.append(1)
            return super().forward(x)

    model = models.OWN["gpt"]()
    model.h = nn.ModuleList([Counted() for _ in range(50)])
    assert len(capture(model, models.batch("gpt"), call=models.call).blocks) == 50
    assert len(calls) == 1


def test_cuts_balance_costs():
    class Lopsided(models.Gpt):
        def __init__(self):
            super().__init__()
            for block in self.h[:2]:
                block.mlp = nn.Sequential(nn.Linear(models.WIDTH, 800), nn.GELU(), nn.Linear(800, models.WIDTH))

    trace = capture(Lopsided(), models.batch("gpt"), call=models.call)
    assert choose_cuts(trace, num_stages=2) == ("h.1",)
    assert choose_cuts(trace, num_stages=1) == ()


def test_more_stages_than_places_to_cut_are_refused_with_the_number_there_are():
    with pytest.raises(LayoutError, match=r"at most 3 \(layers\.0, layers\.1\).*pp \* vp <= 3"):
        choose_cuts(_captured("shared_depth"), num_stages=4)


def test_pip_04_every_layer_is_in_one_stage_when_they_do_not_divide():
    model = models.OWN["gpt"]()
    model.h = nn.ModuleList([models.Block() for _ in range(7)])
    trace = capture(model, models.batch("gpt"), call=models.call)
    for stages in (2, 3, 4):
        cuts = choose_cuts(trace, num_stages=stages)
        starts = [0, *(trace.blocks.index(cut) for cut in cuts), 7]
        assert starts == sorted(set(starts))
    assert set(trace.blocks) == {f"h.{number}" for number in range(7)}


def test_code_between_blocks_that_asks_for_values_is_named_by_its_line():
    class Asks(models.Gpt):
        def forward(self, input_ids):
            x = self.wte(input_ids)
            for block in self.h:
                x = block(x)
                if x.abs().max() > 100:
                    x = x / 2
            return self.lm_head(x)

    with pytest.raises(LayoutError, match=r"test_parallel_capture\.py:\d+ asks for the values") as caught:
        capture(Asks(), models.batch("gpt"), call=models.call)
    assert Path(__file__).read_text().splitlines()[int(str(caught.value).split(":")[1].split()[0]) - 1].strip() == (
        "if x.abs().max() > 100:"
    )


def test_blocks_whose_code_asks_for_values_are_supposed_to_give_what_they_get():
    trace = _captured("hf_mixtral_eager")
    assert len(trace.assumed) == 1  # alike ones are supposed alike
    assert {len(crossing) for crossing in trace.crossings} == {1}


def test_values_that_leave_a_block_by_another_way_are_noticed():
    assert _captured("side_loss").is_open
    assert not _captured("gpt").is_open


def test_layers_left_out_at_random_are_all_there_while_capturing():
    model = models.build("hf_opt")
    model.model.decoder.layerdrop = 0.9
    assert len(capture(model, models.batch("hf_opt"), call=models.call).blocks) == 4
