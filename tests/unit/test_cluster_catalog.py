"""The catalogue of accelerators: found by what drivers say, silent about what nobody published."""

import pytest

from trireme.cluster import CATALOG, find_device, near_devices

_SAID = {
    "NVIDIA A100-SXM4-40GB": "A100 SXM4 40GB",
    "NVIDIA A100-SXM4-80GB": "A100 SXM4 80GB",
    "NVIDIA A100 80GB PCIe": "A100 PCIe 80GB",
    "NVIDIA A100-PCIE-40GB": "A100 PCIe 40GB",
    "NVIDIA A800-SXM4-80GB": "A800 SXM4 80GB",
    "NVIDIA H100 80GB HBM3": "H100 SXM 80GB",
    "NVIDIA H100 PCIe": "H100 PCIe 80GB",
    "NVIDIA H100 NVL": "H100 NVL 94GB",
    "NVIDIA H800": "H800 SXM 80GB",
    "NVIDIA H20": "H20 96GB",
    "NVIDIA H200": "H200 SXM 141GB",
    "NVIDIA B200": "B200 SXM 180GB",
    "NVIDIA B300 SXM6 AC": "B300 SXM 288GB",
    "NVIDIA GB200": "GB200 186GB",
    "Tesla V100-SXM2-16GB": "V100 SXM2 16GB",
    "Tesla V100-SXM2-32GB": "V100 SXM2 32GB",
    "NVIDIA L40S": "L40S 48GB",
    "NVIDIA GeForce RTX 4090": "GeForce RTX 4090",
    "AMD Instinct MI300X": "Instinct MI300X",
    "Ascend910B2": "Ascend 910B",
}


@pytest.mark.parametrize(("said", "name"), _SAID.items())
def test_the_names_that_drivers_report_are_found(said, name):
    assert find_device(said).name == name


@pytest.mark.parametrize(
    "said",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA L40",
        "NVIDIA H200 NVL",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "Ascend910",
        "AMD EPYC 9654",
        "",
    ],
)
def test_another_product_is_unknown_rather_than_wrong(said):
    assert find_device(said) is None


def test_near_names_are_offered_nearest_first():
    assert near_devices("NVIDIA L40")[0] == "L40S 48GB"
    assert near_devices("GeForce RTX 4090 Laptop GPU")[0] == "GeForce RTX 4090"
    assert near_devices("qwertz") == ()


def test_every_row_has_a_source_and_a_date_and_sane_figures():
    for row in CATALOG:
        assert row.source.startswith("https://"), row.name
        assert row.date.count("-") == 2, row.name
        assert row.confidence in ("primary", "secondary", "low")
        assert 1e13 < row.peak_flops_per_s["float16"] < 1e16, row.name
        assert 10 * 2**30 < row.memory_bytes < 2**40, row.name
        assert 1e11 < row.memory_bytes_per_s < 2e13, row.name


def test_narrower_formats_are_never_slower():
    order = ("float32", "tfloat32", "bfloat16", "float8", "float4")
    for row in CATALOG:
        peaks = [row.peak_flops_per_s[dtype] for dtype in order if dtype in row.peak_flops_per_s]
        assert peaks == sorted(peaks), row.name


def test_each_row_is_found_by_its_own_name():
    for row in CATALOG:
        words = " ".join(sorted(row.words))
        assert find_device(words) is row
