"""Small mixtures of experts as people write them, and those of transformers, in fp64."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, WIDTH = 96, 32


class Expert(nn.Module):
    def __init__(self, inner=24):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class LoopedMoe(nn.Module):
    """Each expert is given the tokens that chose it; one that nobody chose isn't called."""

    def __init__(self, num_experts=4):
        super().__init__()
        self.gate = nn.Linear(WIDTH, num_experts, bias=False)
        self.experts = nn.ModuleList([Expert() for _ in range(num_experts)])
        self.forwards = 0

    def choose(self, x):
        scores = self.gate(x).softmax(-1)
        weights, index = scores.topk(2, dim=-1)
        return weights / weights.sum(-1, keepdim=True), index

    def forward(self, x):
        self.forwards += 1
        flat = x.reshape(-1, x.shape[-1])
        weights, index = self.choose(flat)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(index == number)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, (expert(flat[token]) * weights[token, place, None]).to(out.dtype))
        return out.view_as(x)


class DenseMoe(LoopedMoe):
    """Every expert computes every token; most results are weighted by zero."""

    def forward(self, x):
        self.forwards += 1
        weights, index = self.choose(x)
        gates = torch.zeros(*x.shape[:-1], len(self.experts), dtype=x.dtype).scatter(-1, index, weights)
        return sum(gates[..., number, None] * expert(x) for number, expert in enumerate(self.experts))


class StackedExperts(nn.Module):
    """Weights used before the activation, so that they can't be left to the caller."""

    def __init__(self, num_experts):
        super().__init__()
        self.num_experts = num_experts
        self.w1 = nn.Parameter(torch.randn(num_experts, WIDTH, 24) / 6)
        self.w2 = nn.Parameter(torch.randn(num_experts, 24, WIDTH) / 5)

    def forward(self, x, index, weights):
        out = torch.zeros_like(x)
        for number in range(self.num_experts):
            token, place = torch.where(index == number)
            inner = F.silu((x[token] * weights[token, place, None]) @ self.w1[number])
            out = out.index_add(0, token, inner @ self.w2[number])
        return out


class StackedMoe(LoopedMoe):
    def __init__(self, num_experts=4):
        super().__init__(num_experts)
        self.experts = StackedExperts(num_experts)

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        weights, index = self.choose(flat)
        return self.experts(flat, index, weights).view_as(x)


class Layer(nn.Module):
    def __init__(self, moe):
        super().__init__()
        self.norm, self.mix, self.moe = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), moe

    def forward(self, x):
        x = x + self.mix(self.norm(x)).cumsum(1) / 8
        return x + self.moe(x)


class Model(nn.Module):
    def __init__(self, kind, num_experts=4):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList([Layer(kind(num_experts)) for _ in range(2)])
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


HAND = {
    "looped": lambda: Model(LoopedMoe),
    "looped_odd": lambda: Model(LoopedMoe, 5),
    "dense": lambda: Model(DenseMoe),
    "stacked": lambda: Model(StackedMoe),
}

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "head_dim": 8,
    "pad_token_id": 0,
}
_FINE = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}

FAMILIES = {
    "mixtral": ("Mixtral", {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "olmoe": ("Olmoe", {**_SIZES, "num_experts": 4, "num_experts_per_tok": 2}),
    "phimoe": ("Phimoe", {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": ("Qwen2Moe", {**_SIZES, **_FINE, "num_experts": 4, "shared_expert_intermediate_size": 32}),
    "qwen3_moe": ("Qwen3Moe", {**_SIZES, **_FINE, "num_experts": 8}),
    "gpt_oss": ("GptOss", {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}),
    "ernie_moe": (
        "Ernie4_5_Moe",
        {**_SIZES, **_FINE, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1, "moe_layer_start_index": 1},
    ),
    "deepseek_v2": (
        "DeepseekV2",
        {
            **_SIZES,
            **_FINE,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "n_group": 2,
            "topk_group": 1,
            "topk_method": "group_limited_greedy",
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "first_k_dense_replace": 1,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {
            **_SIZES,
            **_FINE,
            "num_key_value_heads": 4,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "first_k_dense_replace": 1,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
}


def build(name, experts="eager"):
    """The model of this name, in fp64, the same on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            model = HAND[name]() if name in HAND else _family(name, experts)
        finally:
            torch.set_default_dtype(default)
        for parameter in model.parameters():
            # Families start routers and biases at zero, which would choose the same experts for every token.
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.5)
        return model.double()


def _family(name, experts):
    import transformers

    prefix, sizes = FAMILIES[name]
    model = getattr(transformers, f"{prefix}ForCausalLM")(getattr(transformers, f"{prefix}Config")(**sizes))
    model.set_experts_implementation(experts)
    return model
