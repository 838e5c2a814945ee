"""Parameters of the torch-free graph: names, shapes and totals equal those of the built model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.family_models import FAMILY_MODELS, Sizes, tiny_model
from trireme.graph import PRESETS, ModelGraph, count_model_params, find_model, model_names, read_config, read_shape


def build_on_meta(model_class: Any, config: Any) -> Any:
    import torch

    with torch.device("meta"):
        return model_class(config)


def assert_same_parameters(graph: ModelGraph, module: Any) -> None:
    built = {name: tuple(param.shape) for name, param in module.named_parameters()}
    predicted = {param.name: param.shape for param in graph.params()}
    assert predicted == built
    assert count_model_params(graph).total == sum(param.numel() for param in module.parameters())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", FAMILY_MODELS)
def test_every_name_and_shape_equals_that_of_the_built_model(name: str, seed: int) -> None:
    tiny = tiny_model(name, Sizes.drawn(seed))
    assert_same_parameters(read_config(tiny.values()), build_on_meta(tiny.model_class, tiny.config))


def test_parts_add_up_to_the_total_in_every_family() -> None:
    for name in FAMILY_MODELS:
        counts = count_model_params(read_config(tiny_model(name, Sizes()).values()))
        assert counts.total == counts.embedding + counts.layers + counts.final + counts.head
        assert counts.active <= counts.total


@pytest.mark.parametrize("preset", ["llama-3m", "llama-19m", "llama-8b"])
def test_a_reference_decoder_has_the_graph_of_its_built_module(preset: str) -> None:
    from trireme.models.decoder import meta_decoder

    assert_same_parameters(read_shape(PRESETS[preset]), meta_decoder(PRESETS[preset]))


PUBLISHED_TOTALS = {
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "bloom-7b1": 7_069_016_064,
    "bloom-176b": 176_247_271_424,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,
    "ernie-4.5-0.3b": 360_748_032,
    "flan-t5-xxl": 11_135_332_352,
    "gemma-7b": 8_537_680_896,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "glm-4-9b": 9_399_951_360,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "llama-1-65b": 65_285_660_672,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "olmo-2-32b": 32_234_279_936,
    "opt-350m": 331_196_416,
    "opt-30b": 29_974_540_288,
    "phi-2": 2_779_683_840,
    "phi-3-medium": 13_960_238_080,
    "phi-4": 14_659_507_200,
    "pythia-12b": 11_846_072_320,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "t5-11b": 11_307_321_344,
    "vit-base-16": 86_567_656,
    "vit-huge-14": 632_045_800,
}
"""Parameters of the released weights, ties once, without buffers (the routing bias of DeepSeek-V3 is one)."""


@pytest.mark.parametrize("name", PUBLISHED_TOTALS)
def test_a_published_model_has_exactly_its_published_parameters(name: str) -> None:
    assert count_model_params(find_model(name)).total == PUBLISHED_TOTALS[name]


NOMINAL_ACTIVE = {
    "deepseek-v2": 21e9,
    "deepseek-v3": 37e9,
    "ernie-4.5-300b-a47b": 47e9,
    "glm-4.5": 32e9,
    "kimi-k2": 32e9,
    "llama-4-maverick": 17e9,
    "llama-4-scout": 17e9,
    "mixtral-8x7b": 12.9e9,
    "mixtral-8x22b": 39e9,
    "qwen3-235b-a22b": 22e9,
}
NOMINAL_TOLERANCE = 0.06
"""Names round, and some leave the embedding out."""


@pytest.mark.parametrize("name", NOMINAL_ACTIVE)
def test_active_parameters_are_those_that_the_name_promises(name: str) -> None:
    assert count_model_params(find_model(name)).active == pytest.approx(NOMINAL_ACTIVE[name], rel=NOMINAL_TOLERANCE)


BUILT_BIG = ("llama-3.1-405b", "qwen3-235b-a22b", "deepseek-v3", "mixtral-8x7b", "gpt-oss-120b", "t5-3b")


@pytest.mark.parametrize("name", BUILT_BIG)
def test_a_big_published_model_equals_the_one_that_transformers_builds(name: str) -> None:
    import transformers

    from trireme.graph.published import PUBLISHED

    graph = find_model(name)
    keys = {key: value for key, value in PUBLISHED[name].config.items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(graph.family, **keys)
    assert_same_parameters(graph, build_on_meta(getattr(transformers, graph.architecture), config))


def test_every_published_name_builds_and_says_where_it_comes_from() -> None:
    from trireme.graph import model_source

    names = model_names()
    assert len(names) > 100
    for name in names:
        graph = find_model(name)
        assert graph.name == name
        assert graph.num_layers > 0
        assert len(model_source(name)) > 10


def test_a_vision_tower_that_is_left_out_is_named() -> None:
    assert find_model("gemma-3-4b").omitted
    assert find_model("llama-4-scout").omitted
    assert not find_model("gemma-3-1b").omitted
    # 4,300,079,472 in all, of which the tower holds 416,866,032 and the projector 2,950,272.
    assert count_model_params(find_model("gemma-3-4b")).total == 4_300_079_472 - 416_866_032 - 2_950_272
