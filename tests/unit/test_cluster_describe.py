"""A cluster as people read it, in both languages, doubts included."""

import subprocess
import sys

import pytest

from trireme.cluster import NODES, describe_cluster, describe_sources, parse_cluster


def test_the_lines_say_size_accelerator_links_and_cost(monkeypatch):
    monkeypatch.setenv("TRIREME_LANG", "en")
    text = "\n".join(describe_cluster(parse_cluster("h100:8x16,price=2,power=1000")))
    for part in (
        "128 ranks",
        "H100 SXM 80GB",
        "989 TFLOP/s",
        "nvlink4",
        "450",
        "ib-ndr400",
        "256.00 in all",
        "128.0 kW",
    ):
        assert part in text
    assert "No good source" not in text


def test_the_lines_are_chinese_where_that_is_asked(monkeypatch):
    monkeypatch.setenv("TRIREME_LANG", "zh")
    lines = describe_cluster(parse_cluster("910b:8x2,oversub=2"))
    assert any("节点内 8 卡" in line for line in lines)
    assert any("没有可靠来源" in line for line in lines)


@pytest.mark.parametrize("key", NODES)
def test_every_node_can_be_shown_with_its_sources(key):
    cluster = parse_cluster(f"{key}:{NODES[key].ranks}x2")
    assert len(describe_cluster(cluster)) >= 3
    assert all("2026-" in line for line in describe_sources(cluster))


def test_what_no_good_source_gives_is_named(monkeypatch):
    monkeypatch.setenv("TRIREME_LANG", "en")
    assert "hccs-910b" in describe_cluster(parse_cluster("910b:8"))[-1]


def test_a_network_that_nobody_gave_is_said_to_be_assumed(monkeypatch):
    monkeypatch.setenv("TRIREME_LANG", "en")

    def says(text):
        return any("assumed" in line for line in describe_cluster(parse_cluster(text)))

    assert says("4090:8x2")
    assert not says("4090:8x2,ib=hdr200")
    assert not says("4090:8")
    assert not says("h100:8x2")


def test_describing_a_cluster_loads_neither_torch_nor_yaml_nor_pydantic():
    code = (
        "import sys; from trireme.cluster import *; describe_cluster(parse_cluster('h100:8x16'));"
        "print(*{'torch', 'yaml', 'pydantic', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.split()
