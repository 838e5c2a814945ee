"""Models as people write them, unmodified, four layers each, in fp64: what a pipeline has to cut."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, WIDTH, HEADS = 61, 32, 4
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": 4,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class Attention(nn.Module):
    """One matrix for q, k and v."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (each.view(B, T, HEADS, C // HEADS).transpose(1, 2) for each in self.qkv(x).split(C, dim=2))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """Learned positions, scaled embedding, head tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(64, WIDTH)
        self.h = nn.ModuleList([Block() for _ in range(4)])
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids):
        x = self.wte(input_ids) * WIDTH**0.5
        x += self.wpe(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class LibraryBlock(nn.Module):
    """``nn.MultiheadAttention``, post-norm, dropout zero."""

    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.ffn = nn.Sequential(nn.Linear(WIDTH, 48), nn.ReLU(), nn.Linear(48, WIDTH))

    def forward(self, x):
        T = x.shape[1]
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool, device=x.device), 1)
        x = self.ln1(x + self.attn(x, x, x, attn_mask=mask, need_weights=False)[0])
        return self.ln2(x + self.ffn(x))


class Library(nn.Module):
    """An embedding, a ``Sequential`` of blocks and a head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.Sequential(*[LibraryBlock() for _ in range(4)])
        self.fc = nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids):
        return self.fc(self.layers(self.embedding(input_ids)))


class LongSkips(nn.Module):
    """A U: what the way down keeps in a list, the way up takes from it."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.down = nn.ModuleList([Block() for _ in range(2)])
        self.middle = Block()
        self.up = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids):
        x = start = self.embedding(input_ids)
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
        x = self.middle(x)
        for block in self.up:
            x = block(x + kept.pop())
        return self.head(x + 0.5 * start)


class TwoTowers(nn.Module):
    """Two stacks over two inputs that meet at the end; integers and a buffer cross too."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.left = nn.ModuleList([Block() for _ in range(2)])
        self.right = nn.ModuleList([Block() for _ in range(2)])
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("shift", torch.linspace(0, 1, WIDTH))

    def forward(self, input_ids, other_ids):
        x, y = self.embedding(input_ids), self.embedding(other_ids)
        best = x.detach().argmax(-1)
        for block in self.left:
            x = block(x)
        for block in self.right:
            y = block(y)
        y = y + self.shift
        x = x + F.one_hot(best, WIDTH).to(x.dtype)
        return (x * self.scale) @ y.transpose(1, 2)


class InPlace(nn.Module):
    """Writes to what a block gave, to slices, and to a buffer of zeros."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList([Block() for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(2 * WIDTH, VOCAB)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        gathered = torch.zeros(*x.shape[:2], 2 * WIDTH, dtype=x.dtype, device=x.device)
        for number, block in enumerate(self.layers):
            x = block(x)
            x += 0.1
            x[:, 0] = x[:, 0] * 2
            if number == 1:
                gathered[..., :WIDTH] = self.norm(x)
        gathered[..., WIDTH:].copy_(x)
        return self.head(gathered)


class SideLoss(nn.Module):
    """Each layer leaves a term of the loss on itself; the model adds them up."""

    class Layer(Block):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(WIDTH, 4)
            self.term = None

        def forward(self, x):
            self.term = self.router(x).softmax(-1).square().mean()
            return super().forward(x)

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList([self.Layer() for _ in range(4)])
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x) + sum(layer.term for layer in self.layers)


class SharedDepth(nn.Module):
    """The same two blocks, three times over."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for _ in range(3):
            for layer in self.layers:
                x = layer(x)
        return self.head(x)


class Plain(nn.Sequential):
    """Nothing repeated."""

    def __init__(self):
        super().__init__(
            nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, VOCAB)
        )

    def forward(self, input_ids):
        return super().forward(input_ids)


class Hourglass(nn.Module):
    """Stages of layers whose widths differ, each with a stack of its own, as in vision models."""

    class Stage(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
            self.widen = nn.Linear(width, 2 * width)

        def forward(self, x):
            for block in self.blocks:
                x = x + block(x).relu()
            return self.widen(x)

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 16)
        self.stages = nn.ModuleList([self.Stage(16), self.Stage(32)])
        self.head = nn.Linear(64, VOCAB)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for stage in self.stages:
            x = stage(x)
        return self.head(x)


OWN = {
    "gpt": Gpt,
    "library": Library,
    "long_skips": LongSkips,
    "two_towers": TwoTowers,
    "in_place": InPlace,
    "side_loss": SideLoss,
    "shared_depth": SharedDepth,
    "plain": Plain,
    "hourglass": Hourglass,
}


def _llama():
    from trireme.graph import DecoderShape
    from trireme.models.decoder import Decoder

    return Decoder(
        DecoderShape(
            vocab_size=VOCAB,
            num_layers=4,
            d_model=WIDTH,
            num_heads=HEADS,
            num_kv_heads=2,
            d_ffn=48,
            max_seq_len=64,
            rope_theta=1e4,
            norm_eps=1e-5,
            tie_embeddings=False,
            dropout=0.0,
        )
    )


_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FAMILIES = {
    "hf_llama": ("Llama", "ForCausalLM", _SIZES),
    "hf_qwen3": ("Qwen3", "ForCausalLM", {**_SIZES, "head_dim": 8, "tie_word_embeddings": True}),
    "hf_gpt2": (
        "GPT2",
        "LMHeadModel",
        {
            "vocab_size": VOCAB,
            "n_embd": WIDTH,
            "n_layer": 4,
            "n_head": HEADS,
            "n_positions": 64,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "hf_opt": (
        "OPT",
        "ForCausalLM",
        {
            "vocab_size": VOCAB,
            "hidden_size": WIDTH,
            "num_hidden_layers": 4,
            "num_attention_heads": HEADS,
            "ffn_dim": 48,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": WIDTH,
            "dropout": 0.0,
        },
    ),
    "hf_bert": ("Bert", "ForMaskedLM", {**_SIZES, **_NO_DROPOUT}),
    "hf_mixtral": (
        "Mixtral",
        "ForCausalLM",
        {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True},
    ),
    "hf_mixtral_eager": ("Mixtral", "ForCausalLM", {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "hf_t5": (
        "T5",
        "ForConditionalGeneration",
        {
            "vocab_size": VOCAB,
            "d_model": WIDTH,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 4,
            "num_heads": HEADS,
            "dropout_rate": 0.0,
            "decoder_start_token_id": 0,
        },
    ),
    "hf_vit": (
        "ViT",
        "ForImageClassification",
        {
            "hidden_size": WIDTH,
            "num_hidden_layers": 4,
            "num_attention_heads": HEADS,
            "intermediate_size": 48,
            "image_size": 16,
            "patch_size": 4,
            "num_labels": 5,
            **_NO_DROPOUT,
        },
    ),
}


def build(name):
    """The model of this name, in fp64, the same on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return _built(name).train()
        finally:
            torch.set_default_dtype(default)


def _built(name):
    if name in OWN:
        return OWN[name]()
    if name == "llama":
        return _llama()
    import transformers

    prefix, head, sizes = FAMILIES[name]
    model = getattr(transformers, prefix + head)(getattr(transformers, f"{prefix}Config")(**sizes))
    if prefix == "Mixtral":
        model.set_experts_implementation("eager" if name.endswith("eager") else "batched_mm")
    return model


def batch(name, *, rows=6, length=12, seed=0):
    """What the model's forward takes."""
    generator = torch.Generator().manual_seed(seed)
    if name == "hf_vit":
        return {"pixel_values": torch.randn(rows, 3, 16, 16, generator=generator, dtype=torch.float64)}
    ids = torch.randint(3, VOCAB, (rows, length), generator=generator)
    given = {"input_ids": ids}
    if name.startswith("hf_"):
        mask = torch.ones_like(ids)
        mask[::2, -3:] = 0
        given["attention_mask"] = mask
    if name == "hf_t5":
        given["decoder_input_ids"] = ids[:, : length // 2].flip(1)
    if name == "two_towers":
        given["other_ids"] = ids.flip(1)
    if name == "llama":
        given["document_ids_BT"] = (torch.arange(length) // 5).expand(rows, length).contiguous()
        given["input_ids_BT"] = given.pop("input_ids")
    return given


def call(module, given):
    """Call it as a trainer does."""
    extra = {"use_cache": False} if hasattr(module, "config") and not hasattr(module, "vit") else {}
    return module(**given, **extra)


def loss_of(outputs, given, index):
    """A loss that no symmetry makes zero."""
    logits = getattr(outputs, "logits", outputs)
    weights = torch.linspace(-1, 1, logits.shape[-1], dtype=logits.dtype)
    loss = -(logits.log_softmax(-1) * weights).sum() / 100
    extra = getattr(outputs, "aux_loss", None)
    return loss if extra is None else loss + extra


def cut(given, sizes):
    """Rows of a batch as micro-batches of these sizes."""
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [
        {key: value[start : start + size] for key, value in given.items()}
        for start, size in zip(starts, sizes, strict=True)
    ]
