"""Matrix products by shape: ceilings as published, whole tiles and waves, memory and launch floors."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.cluster import NODES, ceiling_of, estimate_matmul, quantisation_ratio

A100, H100, H200, B200, CPU = (NODES[key].accelerator for key in ("a100-80gb", "h100", "h200", "b200", "cpu"))
ROUNDING = 0.01  # the research prints shares to three figures


@pytest.mark.parametrize(
    ("accelerator", "dtype", "published"),
    [
        (A100, "bfloat16", 0.869),
        (H100, "bfloat16", 0.803),
        (H100, "float8", 0.709),
        (B200, "bfloat16", 0.776),
        (B200, "float8", 0.763),
    ],
)
def test_ceilings_are_those_published(accelerator, dtype, published):
    ratio, is_measured = ceiling_of(accelerator, dtype=dtype)
    assert is_measured
    assert ratio == pytest.approx(published, rel=ROUNDING)


def test_a_chip_without_a_published_ceiling_says_so():
    assert not ceiling_of(CPU, dtype="float32")[1]


def test_large_products_come_near_the_ceiling():
    time = estimate_matmul(m=8192, n=16384, k=8192, accelerator=H100)
    assert 0.85 * 0.803 < time.ratio <= 0.803
    assert time.bound == "compute"


def test_a_full_wave_of_whole_tiles_loses_nothing():
    assert quantisation_ratio(m=2304, n=1536, accelerator=A100) == pytest.approx(1.0)  # 9 x 12 tiles on 108 processors


def test_one_tile_more_than_a_wave_costs_a_wave():
    whole = estimate_matmul(m=2304, n=1536, k=4096, accelerator=A100)
    more = estimate_matmul(m=2304 + 256, n=1536, k=4096, accelerator=A100)
    assert more.ratio < 0.9 * whole.ratio


def test_a_few_rows_are_bound_by_memory_and_nothing_beats_a_launch():
    assert estimate_matmul(m=8, n=8192, k=8192, accelerator=H100).bound == "memory"
    assert estimate_matmul(m=16, n=16, k=16, accelerator=H100).bound == "launch"


@given(m=st.integers(1, 20000), n=st.integers(1, 20000), k=st.integers(1, 20000))
@settings(max_examples=100, deadline=None)
def test_no_product_beats_the_ceiling_and_more_depth_takes_no_less_time(m, n, k):
    time = estimate_matmul(m=m, n=n, k=k, accelerator=H200)
    assert 0 < time.ratio <= ceiling_of(H200, dtype="bfloat16")[0]
    assert time.time_s <= estimate_matmul(m=m, n=n, k=k + 1, accelerator=H200).time_s
