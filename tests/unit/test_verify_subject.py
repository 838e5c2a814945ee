"""MODEL: what is read, what is refused in one line, and the small twin of a big config."""

import json
from pathlib import Path

import pytest
import torch

from trireme.errors import ModelError, TriremeError
from trireme.plan import parse_layout
from trireme.verify import Source
from trireme.verify.batch import part_of

ZOO = Path(__file__).parents[2] / "recipes" / "zoo"
NAMES = sorted(path.stem for path in ZOO.glob("*.py"))
_ISSUED = {"gpt2_tied", "qwen3", "t5", "mixtral"}

LINEAR = "import torch\nfrom torch import nn\n"


def _load(folder, text, **options):
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return Source(model=f"{folder / 'mine.py'}:build", **options).load()


def test_the_zoo_has_what_documents_name():
    assert set(NAMES) >= _ISSUED
    assert len(NAMES) >= 30


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_the_zoo_is_built_twice_alike_and_trains(name):
    first, second = (Source(model=f"{ZOO / name}.py:build").load() for _ in range(2))
    pairs = zip(first.module.named_parameters(), second.module.named_parameters(), strict=True)
    assert all(one == other and torch.equal(a, b) for (one, a), (other, b) in pairs)
    batch = first.make_batch(1, 3, 12)
    count = first.objective.count(batch)
    loss = first.objective.evaluate(first.module, batch, count=count)
    torch.autograd.backward(loss.loss_sum / count)
    assert count > 0
    assert any(parameter.grad is not None for parameter in first.module.parameters())


def test_rows_of_the_default_batch_count_unequal_numbers_of_tokens():
    subject = Source(model=f"{ZOO / 'llama_by_hand'}.py:build").load()
    batch = subject.make_batch(0, 6, 16)
    per_row = (batch["labels"] != -100).sum(-1)
    assert len(set(per_row.tolist())) > 2
    assert per_row.min() > 0


def test_a_file_may_leave_out_its_count_for_its_loss_gives_it(tmp_path):
    subject = _load(
        tmp_path,
        LINEAR
        + "def build():\n    return nn.Linear(3, 2)\n"
        + "def batch(seed, seqs, seq_len):\n    g = torch.Generator().manual_seed(seed)\n"
        + "    return {'input': torch.randn(seqs, 3, generator=g), 'wanted': torch.ones(seqs, 2)}\n"
        + "def loss(outputs, batch):\n    return (outputs - batch['wanted']).square().sum(), outputs.numel()\n",
        dtype="fp64",
    )
    batch = subject.make_batch(0, 5, 8)
    assert batch["input"].dtype == torch.float64
    assert subject.objective.count(batch) == 10


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def build(:\n", "SyntaxError"),
        ("import nowhere_to_be_found\n", "nowhere_to_be_found"),
        ("def make():\n    pass\n", "build"),
        ("def build():\n    return 3\n", "int"),
        ("def build():\n    raise ValueError('no weights today')\n", "no weights today"),
        (LINEAR + "def build():\n    return nn.ReLU()\n", "ReLU"),
        (LINEAR + "batch = 3\ndef build():\n    return nn.Linear(3, 3)\n", "batch"),
        (LINEAR + "def build():\n    return nn.Linear(3, 3)\n", "batch(seed, seqs, seq_len)"),
    ],
)
def test_a_file_that_is_no_model_is_refused_in_one_line(tmp_path, monkeypatch, text, said):
    monkeypatch.setenv("TRIREME_LANG", "en")
    with pytest.raises(ModelError) as refused:
        _load(tmp_path, text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("model", ["nowhere.py:build", "recipes/zoo", "config.json", "no_such_package:build", "llama"])
def test_a_model_that_is_not_there_is_refused_in_one_line(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    Path("recipes/zoo").mkdir(parents=True)
    with pytest.raises(TriremeError) as refused:
        Source(model=model).load()
    assert "\n" not in str(refused.value)


def test_a_batch_that_is_none_is_refused(tmp_path):
    subject = _load(
        tmp_path,
        LINEAR + "def build():\n    return nn.Linear(3, 3)\ndef batch(seed, seqs, seq_len):\n    return [1]\n"
        "def loss(outputs, batch):\n    return outputs.sum(), 1\n",
    )
    with pytest.raises(ModelError):
        subject.make_batch(0, 2, 4)


def test_parts_of_a_batch_cover_it_once_and_differ_by_at_most_a_row():
    layout = parse_layout("hsdp=2x2,tp=2").layout
    batch = {"ids": torch.arange(7)[:, None].expand(7, 3), "scale": torch.tensor(2.0), "name": "x"}
    parts = [part_of(batch, layout, rank=rank) for rank in range(8)]
    assert torch.cat([part["ids"] for part in parts[::2]])[:, 0].tolist() == list(range(7))
    assert all(torch.equal(a["ids"], b["ids"]) for a, b in zip(parts[::2], parts[1::2], strict=True))
    assert all(part["scale"] == 2 and part["name"] == "x" for part in parts)


_BIG = {
    "llama": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "eos_token_id": [128001, 128008],
        "bos_token_id": 128000,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "first_k_dense_replace": 3,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "vocab_size": 129280,
    },
    "gemma3_text": {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "vocab_size": 262144,
        "sliding_window": 512,
    },
    "t5": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 1024,
        "d_kv": 64,
        "d_ff": 2816,
        "num_layers": 24,
        "num_heads": 16,
        "vocab_size": 32128,
        "is_encoder_decoder": True,
        "decoder_start_token_id": 0,
        "dropout_rate": 0.0,
    },
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 1600,
        "n_head": 25,
        "n_layer": 48,
        "n_positions": 1024,
        "vocab_size": 50257,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
}
_SMALL_ELEMENTS = 3_000_000


@pytest.mark.parametrize("name", list(_BIG))
def test_the_twin_of_a_big_config_is_small_and_has_the_same_kinds_of_layers(tmp_path, name):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(_BIG[name]), encoding="utf-8")
    subject = Source(model=str(path), shrink=True).load()
    config, big = subject.module.config, _BIG[name]
    assert sum(each.numel() for each in subject.module.parameters()) < _SMALL_ELEMENTS
    if "num_key_value_heads" in big:
        ratio = config.num_attention_heads // config.num_key_value_heads
        assert ratio == min(8, big["num_attention_heads"] // big["num_key_value_heads"])
    kinds = [type(layer.mlp).__name__ for layer in _layers(subject.module) if hasattr(layer, "mlp")]
    assert len(set(kinds)) == (2 if name == "deepseek_v3" else 1 if kinds else 0)
    if name == "gemma3_text":
        assert set(config.layer_types) == {"sliding_attention", "full_attention"}
    batch = subject.make_batch(0, 2, 16)
    loss = subject.objective.evaluate(subject.module, batch, count=subject.objective.count(batch))
    torch.autograd.backward(loss.loss_sum)


def _layers(module):
    return max((each for each in module.modules() if isinstance(each, torch.nn.ModuleList)), key=len)


def test_only_a_config_can_be_shrunk():
    with pytest.raises(ModelError):
        Source(model=f"{ZOO / 'llama'}.py:build", shrink=True).load()
