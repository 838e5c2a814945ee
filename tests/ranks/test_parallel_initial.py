"""Modules built on meta: every rank makes what it holds, with one device's numbers, and no more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import trireme.fleet as fleet
from trireme.interpret import materialise, recorded
from trireme.mesh import run_on_ranks
from trireme.parallel import ParallelModel, parallelize
from trireme.plan import parse_layout

VOCAB, WIDTH, HEADS, ROWS, SEED = 96, 32, 4, 4, 5
SAME = 1e-12
"""fp64: what the order of sums explains, relative to the largest element of a tensor."""
LEARNED = 1e-2
"""Rate of the one step that is compared."""
LEARNED_SAME = 1e-9
"""Norms of Llama's family compute in fp32 whatever they are given: gradients differ by some 1e-8, times the rate."""


class Layer(nn.Module):
    """A fused matrix, filled in parts, and one that must be orthogonal."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.randn(WIDTH) * 0.02 + 1.0)
        self.register_buffer("visible", torch.tril(torch.ones(16, 16, dtype=torch.bool)), persistent=False)
        nn.init.xavier_uniform_(self.qkv.weight[: 2 * WIDTH])
        nn.init.trunc_normal_(self.up.weight, std=0.02 / (layer + 1))
        nn.init.orthogonal_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = (each.view(B, T, HEADS, C // HEADS).transpose(1, 2) for each in self.qkv(self.ln(x)).chunk(3, dim=-1))
        scores = (q @ k.transpose(-2, -1) / 8.0).masked_fill(~self.visible[:T, :T], float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(x * self.gain)))


class Gpt(nn.Module):
    """A head tied to the embedding; what it returns has the name that models of Hugging Face use."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH, padding_idx=0), nn.Embedding(16, WIDTH)
        self.h = nn.ModuleList(Layer(layer) for layer in range(2))
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1], device=input_ids.device))
        for layer in self.h:
            x = layer(x)
        return {"logits": self.lm_head(x)}


def build(name: str) -> nn.Module:
    """Build on meta, the hand-written one while it is watched."""
    torch.set_default_dtype(torch.float64)
    if name == "gpt":
        with recorded():
            return Gpt()
    import transformers

    sizes = {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    common = {**sizes, "intermediate_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    grouped = {**common, "num_key_value_heads": 2, "max_position_embeddings": 64}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    gpt2 = {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = {
        "llama": lambda: transformers.LlamaConfig(**grouped, tie_word_embeddings=True),
        "qwen3": lambda: transformers.Qwen3Config(**grouped, head_dim=8),
        "gpt2": lambda: transformers.GPT2Config(**gpt2, vocab_size=VOCAB, bos_token_id=1, eos_token_id=2),
        "bert": lambda: transformers.BertConfig(**common, **no_dropout, max_position_embeddings=64),
        "mixtral": lambda: transformers.MixtralConfig(**grouped, num_local_experts=4),
    }[name]()
    auto = transformers.AutoModelForMaskedLM if name == "bert" else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        module: nn.Module = auto.from_config(config)
    if name == "mixtral":
        module.set_experts_implementation("batched_mm")
    return module


def make_batch() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    return {name: torch.randint(1, VOCAB, (ROWS, 12), generator=random) for name in ("input_ids", "labels")}


def call(module: nn.Module, batch: Any) -> Tensor:
    logits: Tensor = module(input_ids=batch["input_ids"])["logits"]
    return logits


def loss_fn(outputs: Tensor, batch: Any) -> tuple[Tensor, int]:
    loss = F.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
    return loss, batch["labels"].numel()


def spread(name: str, layout: str) -> ParallelModel:
    parsed = parse_layout(layout, ranks=dist.get_world_size()).layout
    return parallelize(
        build(name),
        parsed,
        example=make_batch(),
        call=call,
        loss_fn=loss_fn,
        seed=SEED,
        device=torch.device("cpu"),
        notice=lambda text: None,
    )


def check_weights(name: str, layout: str) -> None:
    reference = materialise(build(name), seed=SEED).train()
    model = spread(name, layout).train()
    assert not any(each.is_meta for each in (*model.module.parameters(), *model.module.buffers()))
    found = model.full_parameters()
    if dist.get_rank() == 0:
        assert set(found) == {each for each, _ in reference.named_parameters()}
    for each, whole in found.items():
        assert torch.equal(whole, reference.get_parameter(each)), each
    buffers = dict(reference.named_buffers())
    for each, buffer in model.module.named_buffers():
        assert torch.equal(buffer, buffers[each]), each
    check_step(model, reference)


def check_step(model: ParallelModel, reference: nn.Module) -> None:
    batch = make_batch()
    loss, count = loss_fn(call(reference, batch), batch)
    (loss / count).backward()
    line = model.axes["dp"]
    part = {key: value.chunk(line.degree)[line.rank] for key, value in batch.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNED)
    assert float(model.train_step(part, loss_fn)) == pytest.approx(float(loss.detach()) / count, rel=SAME)
    optimizer.step()
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.grad is not None:
                parameter.sub_(LEARNED * parameter.grad)
    for each, whole in model.full_parameters().items():
        expected = reference.get_parameter(each)
        assert float((whole - expected).abs().max()) <= LEARNED_SAME * max(1.0, float(expected.abs().max())), each


CASES = [
    ("gpt", "tp=2"),
    ("gpt", "tp=2,pp=2"),
    ("gpt", "zero3"),
    ("llama", "tp=2"),
    ("llama", "zero3"),
    ("llama", "pp=2"),
    ("qwen3", "tp=2,pp=2"),
    ("qwen3", "tp=2,zero3"),
    ("gpt2", "tp=2"),
    ("bert", "pp=2"),
    ("mixtral", "zero3"),
    ("mixtral", "ep=2,dp=2"),
    ("mixtral", "ep=2,dp=4,zero3"),
]


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_any_layout_begins_and_learns_as_one_device(name: str, layout: str) -> None:
    """PAR-09: among them models whose head is tied, before and after a step."""
    ranks = 4 if layout in ("tp=2,pp=2", "tp=2,zero3", "ep=2,dp=4,zero3") else 2
    run_on_ranks(check_weights, ranks, name=name, layout=layout, timeout_s=120.0)


def train_with_fleet() -> list[float]:
    """An optimizer that is built while parameters have no values yet."""
    fleet.init("zero3")
    model = fleet.distributed_model(build("gpt"), call=call)
    optimizer = fleet.distributed_optimizer(torch.optim.AdamW(model.parameters(), lr=LEARNED))
    losses = []
    for _ in range(3):
        part = {key: value.chunk(2)[dist.get_rank()] for key, value in make_batch().items()}
        losses.append(float(model.train_step(part, loss_fn)))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def test_an_optimizer_may_be_built_before_there_are_values() -> None:
    before = torch.get_default_dtype()
    try:
        reference = materialise(build("gpt"), seed=0)
    finally:
        torch.set_default_dtype(before)
    optimizer, losses, batch = torch.optim.AdamW(reference.parameters(), lr=LEARNED), [], make_batch()
    for _ in range(3):
        optimizer.zero_grad()
        loss, count = loss_fn(call(reference, batch), batch)
        (loss / count).backward()
        optimizer.step()
        losses.append(float(loss.detach()) / count)
    for found in run_on_ranks(train_with_fleet, 2, timeout_s=120.0):
        assert found == pytest.approx(losses, rel=LEARNED_SAME)


class Allocations(TorchDispatchMode):
    """The largest floating-point tensor that an operation made storage for."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, Tensor) and each.device.type == "cpu" and type(each) is Tensor:
                self.largest = max(self.largest, each.untyped_storage().nbytes())
        return out


class Wide(nn.Module):
    """Blocks whose matrices are far larger than what is drawn at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(1024, 1024, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x


def check_memory(layout: str) -> tuple[int, int]:
    with recorded():
        module = Wide()
    with Allocations() as seen:
        model = parallelize(module, layout, example={"x": torch.zeros(2, 1024)}, notice=lambda text: None)
    held = [each.to_local() if hasattr(each, "to_local") else each for each in model.parameters()]
    return seen.largest, sum(each.numel() * each.element_size() for each in held)


@pytest.mark.parametrize("layout", ["tp=2", "zero3"])
def test_no_rank_ever_makes_a_whole_parameter(layout: str) -> None:
    whole = 1024 * 1024 * 4
    for largest, held in run_on_ranks(check_memory, 2, layout=layout, timeout_s=120.0):
        assert largest <= whole // 2
        assert held == 4 * whole // 2
