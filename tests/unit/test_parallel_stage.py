"""Stages of a module over copies of it, one after the other, equal the module."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trireme.errors import LayoutError
from trireme.parallel import StageSet, capture

sys.path.insert(0, str(Path(__file__).parent))
import stage_chain
from stage_chain import check_chain, cut_module, models


class Recomputing(models.Gpt):
    """Recomputes its blocks by itself."""

    def forward(self, input_ids):
        x = self.wte(input_ids)
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False)
        return self.lm_head(x)


class RecomputingInFunction(models.Gpt):
    def forward(self, input_ids):
        x = self.wte(input_ids)
        for block in self.h:
            x = checkpoint(lambda y, block=block: block(y), x, use_reentrant=False)
        return self.lm_head(x)


class LooksAtInputs(models.Gpt):
    """What it does to activations depends on the values of its inputs."""

    def forward(self, input_ids):
        x = self.wte(input_ids)
        if (input_ids > 40).any():
            x = x * 2
            x = x + 1
        for block in self.h:
            x = block(x)
        return self.lm_head(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(models.VOCAB, 16), nn.Linear(16, models.VOCAB)
        self.layers = nn.ModuleList([nn.LSTM(16, 16, batch_first=True) for _ in range(3)])

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for layer in self.layers:
            x, _ = layer(x)
        return self.head(x)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum((0, 1))


class OwnFunction(models.Gpt):
    """An autograd function of its own between the blocks, with one weight for all."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, models.WIDTH))

    def forward(self, input_ids):
        x = Scale.apply(self.wte(input_ids), self.weight)
        for block in self.h:
            x = Scale.apply(block(x), self.weight)
        return self.lm_head(x)


class Remembering(models.Gpt):
    """A buffer written behind the first block and read behind the last one."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(models.WIDTH))

    def forward(self, input_ids):
        x = self.wte(input_ids)
        for number, block in enumerate(self.h):
            x = block(x)
            if number == 0:
                self.mean.mul_(0.9).add_(x.detach().mean((0, 1)))
        return self.lm_head(x + self.mean)


OWN = [Recomputing, LooksAtInputs, Recurrent, OwnFunction]


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_styles_of_code_are_exact_in_three_stages(kind):
    torch.manual_seed(3)
    check_chain(kind().double(), models.batch("gpt"), 3)


@pytest.mark.parametrize("name", ["hf_llama", "hf_gpt2"])
def test_hidden_states_that_a_model_collects_reach_the_last_stage(name):
    def call(module, given):
        return module(**given, use_cache=False, output_hidden_states=True)

    def loss(outputs, given, index):
        return sum(number * each.square().sum() for number, each in enumerate(outputs.hidden_states, start=1))

    check_chain(models.build(name), models.batch(name), 3, call=call, loss=loss)


def test_a_cache_that_layers_fill_keeps_stages_exact():
    check_chain(models.build("hf_llama"), models.batch("hf_llama"), 2, call=lambda module, given: module(**given))


def test_hugging_faces_own_recomputation_keeps_stages_exact():
    model = models.build("hf_llama")
    model.gradient_checkpointing_enable()
    check_chain(model, models.batch("hf_llama"), 2)


def test_experts_whose_code_depends_on_data_are_exact():
    check_chain(models.build("hf_mixtral_eager"), models.batch("hf_mixtral_eager"), 2)


def test_one_stage_is_the_module_itself():
    module = models.build("gpt")
    kind = type(module)
    trace = capture(module, models.batch("gpt"), call=models.call)
    stages = StageSet(module, trace, cuts=(), stages=(0,), num_stages=1, call=models.call)
    assert type(module) is kind
    outputs = stages.forward(0, models.batch("gpt")).outputs
    assert torch.equal(outputs, module(**models.batch("gpt")))


def test_a_stage_holds_its_own_parameters_alone_under_their_names():
    sets = cut_module(models.build("gpt"), models.batch("gpt"), 2, cuts=("h.2",))
    first, last = (dict(each.module.named_parameters()) for each in sets)
    assert {name for name in first if name.startswith("h.")} == {
        name for name in first if name[2] in "01" and name[0] == "h"
    }
    assert "ln_f.weight" in last
    assert "ln_f.weight" not in first
    assert "wte.weight" in first
    assert "wte.weight" in last
    assert set(sets[0].module.state_dict()) == set(sets[0].owned_names)
    for each in sets:
        assert isinstance(each.module, models.Gpt)
        assert type(each.module).__name__ == "Gpt"
        assert isinstance(each.module.h[3], models.Block)
        absent = each.module.h[0 if each is sets[1] else 3].attn.qkv.weight
        assert absent.shape == (96, 32)
        assert absent.untyped_storage().device.type == "meta"


def test_a_frozen_first_stage_sends_no_need_of_a_gradient():
    module = models.build("library")
    for parameter in (*module.embedding.parameters(), *module.layers[:2].parameters()):
        parameter.requires_grad_(False)
    sets = cut_module(module, models.batch("library"), 2, cuts=("layers.2",))
    assert not sets[0].forward(0, models.batch("library")).to_send[0].requires_grad
    check_chain(module, models.batch("library"), 2, cuts=("layers.2",))


def test_layers_left_out_at_random_are_the_same_ones_on_every_stage():
    module = models.build("hf_opt")
    module.model.decoder.layerdrop = 0.5
    given = models.batch("hf_opt")
    sets = cut_module(module, given, 2, cuts=("model.decoder.layers.2",))
    with torch.no_grad():
        for number in range(8):
            try:
                sent = sets[0].forward(0, given, number=number).to_send
            except LayoutError as error:
                assert "all were left out" in str(error)
                continue
            assert sets[1].forward(1, given, sent, number=number).outputs.logits.isfinite().all()


def test_a_module_that_is_cut_refuses_to_be_called():
    sets = cut_module(models.build("gpt"), models.batch("gpt"), 2)
    with pytest.raises(LayoutError, match="lacks the parameters of the others"):
        sets[0].module(**models.batch("gpt"))


def test_recomputation_in_a_function_of_the_models_own_is_refused_by_name():
    torch.manual_seed(3)
    sets = cut_module(RecomputingInFunction().double(), models.batch("gpt"), 2)
    with pytest.raises(LayoutError, match=r"recomputes block h\.\d inside a function"):
        stage_chain.run_chain(sets, models.batch("gpt"))


def test_a_buffer_is_not_handed_on_and_its_stages_are_not_parted():
    torch.manual_seed(3)
    given = models.batch("gpt")
    with pytest.raises(LayoutError, match=r"Buffer mean is written before block h\.1"):
        cut_module(Remembering(), given, 2, cuts=("h.1",))
    check_chain(Remembering().double(), given, 2, cuts=("h.0",))


def test_eager_experts_with_router_logits_are_refused_by_name():
    import transformers

    sizes = {**models.FAMILIES["hf_mixtral"][2]}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes))
    model.set_experts_implementation("eager")
    with pytest.raises(LayoutError, match=r"modeling_mixtral\.py:\d+ asks for values inside a block"):
        capture(model, models.batch("hf_mixtral"), call=models.call)


@pytest.mark.parametrize(
    ("cuts", "message"),
    [(("h.9",), "can't begin with h.9"), (("h.2", "h.1"), "3 stages need"), (("h.1", "h.1"), "3 stages need")],
)
def test_cuts_that_make_no_sense_are_refused(cuts, message):
    with pytest.raises(LayoutError, match=message):
        cut_module(models.build("gpt"), models.batch("gpt"), 3, cuts=cuts)


def test_a_stage_that_runs_another_batch_says_so():
    sets = cut_module(models.build("gpt"), models.batch("gpt"), 2)
    sent = sets[0].forward(0, models.batch("gpt", rows=2)).to_send
    with pytest.raises(LayoutError, match="don't run the same forward"):
        sets[1].forward(1, models.batch("gpt", rows=3), sent)


def test_blocks_that_are_not_of_a_stage_are_not_run():
    ran = []
    sets = cut_module(models.build("gpt"), models.batch("gpt"), 2, cuts=("h.2",))
    sent = sets[0].forward(0, models.batch("gpt")).to_send
    sets[1].forward(1, models.batch("gpt"), sent)
    for number, block in enumerate(sets[1].module.h):
        block.attn.register_forward_pre_hook(lambda *_, number=number: ran.append(number))
    sets[1].forward(1, models.batch("gpt"), sets[0].forward(0, models.batch("gpt")).to_send)
    assert ran == [2, 3]
