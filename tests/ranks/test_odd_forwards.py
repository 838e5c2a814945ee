"""Forwards that decide, count, remember: equal to one device, or refused by name, never silently another thing."""

from pathlib import Path

import pytest

from trireme.errors import LayoutError
from trireme.mesh import preload_on_ranks
from trireme.verify import Memory, Request, Source, verify

MODELS = Path(__file__).parent / "odd_forwards.py"
MEMORY = Memory()
preload_on_ranks("trireme.verify.preload")


def run(what, layout, *, ranks=2):
    source = Source(model=f"{MODELS}:build_{what}", dtype="fp64")
    return verify(Request(source=source, layout=layout, ranks=ranks, timeout_s=60), memory=MEMORY)


EXACT = [
    ("python", "dp=2,zero3", 2),
    ("python", "tp=2,micro=2", 2),
    ("numpy", "pp=2,zero3,micro=2", 4),
    ("own_random", "dp=2,micro=2", 2),
    ("torch", "pp=2,zero3,micro=4", 4),
    ("torch_randint", "dp=2,zero3", 2),
    ("block_random", "dp=2,zero3,recompute=full", 2),
    ("harmless_branch", "dp=2,zero3", 2),
    ("harmless_branch", "tp=2,sp", 2),
    ("branch_by_rows", "tp=2", 2),
    ("branch_by_rows", "cp=2", 2),
    ("memory", "tp=2", 2),
    ("count", "pp=2", 2),
    ("count", "dp=2,micro=2", 2),
    ("hook", "pp=2,schedule=zb", 2),
    ("hook", "pp=2,schedule=zbv", 2),
]


@pytest.mark.parametrize(("what", "layout", "ranks"), EXACT, ids=[f"{each[0]}-{each[1]}" for each in EXACT])
def test_what_a_forward_decides_is_what_one_device_decides(what, layout, ranks):
    report = run(what, layout, ranks=ranks)
    assert report.ok, list(report.lines())


REFUSED = [
    ("block_random", "pp=2", "layers.0"),
    ("branch_by_rows", "dp=2", "odd_forwards.py"),
    ("branch_by_rows", "micro=2,dp=1", "odd_forwards.py"),
    ("branch_by_rows", "dp=2,zero3", "odd_forwards.py"),
    ("harmless_branch", "pp=2", "odd_forwards.py"),
    ("memory", "dp=2", "memory"),
    ("memory", "pp=2", "memory"),
]


@pytest.mark.parametrize(("what", "layout", "named"), REFUSED, ids=[f"{each[0]}-{each[1]}" for each in REFUSED])
def test_what_a_layout_cant_keep_equal_is_refused_by_name(what, layout, named):
    with pytest.raises(LayoutError) as refused:
        run(what, layout, ranks=1 if layout.startswith("micro") else 2)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)
