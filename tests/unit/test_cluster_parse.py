"""A cluster in a few letters or a file: read strictly, written back the same, refused with what would work."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.cluster import (
    CATALOG,
    LINKS,
    NETWORKS,
    NODES,
    Source,
    format_cluster,
    format_cluster_file,
    load_cluster,
    parse_cluster,
    parse_cluster_file,
    plain_link,
)
from trireme.errors import ConfigError


def refusal(call, *arguments, **named):
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **named)
    return caught.value


def test_the_forms_of_the_guide_are_read():
    cluster = parse_cluster("h100:8x16")
    assert (cluster.accelerator.name, cluster.ranks_per_node, cluster.num_nodes) == ("H100 SXM 80GB", 8, 16)
    assert cluster.num_ranks == 128
    assert parse_cluster("h100:8x16,ib=ndr400") == cluster
    assert parse_cluster("a100-80gb:8x128").accelerator.memory_bytes == 80 * 1024**3
    assert (parse_cluster("4090:2").num_ranks, parse_cluster("4090:2").num_nodes) == (2, 1)
    assert parse_cluster("cpu:2").intra.name == "shared-memory"
    assert parse_cluster("h200").num_ranks == 8
    assert parse_cluster("H800:8x256").intra.bytes_per_s == 200e9
    assert parse_cluster("Ascend_910B:8").accelerator.name == "Ascend 910B"


def test_every_accelerator_of_the_issue_has_a_node_and_every_node_stands_in_the_catalogue():
    for key in [
        "a100-40gb",
        "a100-80gb",
        "a800",
        "h100",
        "h800",
        "h20",
        "h200",
        "b200",
        "b300",
        "gb200",
        "gb300",
        "v100-16gb",
        "v100-32gb",
        "l40s",
        "4090",
        "mi300x",
        "910b",
        "cpu",
    ]:
        assert parse_cluster(key).num_ranks >= 1
    names = {row.name for row in CATALOG}
    assert all(node.accelerator.name in names for key, node in NODES.items() if key != "cpu")
    assert all(node.intra in LINKS and node.inter in NETWORKS for node in NODES.values())


def test_every_figure_of_a_link_has_a_source_and_a_date():
    for link in LINKS.values():
        for source in (link.source, link.ratio_source, *(protocol.source for protocol in link.protocols)):
            assert source.where
            assert source.date.count("-") == 2
        assert 0 < link.ratio <= 1
        assert link.bytes_per_s > 0


def test_bandwidth_inside_a_node_agrees_with_the_catalogue_of_accelerators():
    for key, node in NODES.items():
        link = LINKS[node.intra]
        known = node.accelerator.link_bytes_per_s
        if known is not None and link.peer_bytes_per_s is None:
            assert link.bytes_per_s == known, key


def test_options_say_what_differs():
    cluster = parse_cluster("h100:8x64,roce=400,cards=4,pod=16,oversub=7,price=2.5,power=1000")
    assert cluster.inter.name == "roce-400"
    assert cluster.cards_per_node == 4
    assert (cluster.pod_nodes, cluster.oversubscription) == (16, 7)
    assert (cluster.price_per_rank_hour, cluster.power_w_per_rank) == (2.5, 1000)


def test_cards_joined_by_a_bridge_do_not_stop_at_a_socket():
    boxes = [parse_cluster(f"a100-80gb-pcie:8{more}") for more in ("", ",intra=nvlink3")]
    assert [[tier.name for tier in box.tiers] for box in boxes] == [["socket", "node"], ["node"]]
    assert all(parse_cluster(format_cluster(box)) == box for box in boxes)


def test_plain_ethernet_comes_one_card_to_a_node():
    assert parse_cluster("v100-16gb:8x8,eth=25").network_bytes_per_s == pytest.approx(25e9 / 8 / 8)
    assert parse_cluster("h100:8x2,cards=2,eth=100").cards_per_node == 2


_OPTION = st.fixed_dictionaries(
    {},
    optional={
        "inter": st.sampled_from(NETWORKS),
        "cards": st.sampled_from([0.5, 1, 4, 8]),
        "oversub": st.sampled_from([1, 1.5, 3]),
        "pod": st.integers(1, 64),
        "rack": st.integers(1, 8),
        "price": st.floats(0, 100, allow_nan=False),
        "power": st.sampled_from([0, 350.5, 1000]),
    },
)


@given(key=st.sampled_from(sorted(NODES)), ranks=st.integers(1, 72), nodes=st.integers(1, 4096), options=_OPTION)
@settings(max_examples=150, deadline=None)
def test_a_written_cluster_reads_back_the_same(key, ranks, nodes, options):
    text = ",".join([f"{key}:{ranks}x{nodes}", *(f"{name}={value}" for name, value in options.items())])
    cluster = parse_cluster(text)
    written = format_cluster(cluster)
    assert parse_cluster(written) == cluster
    assert cluster.name == written
    assert format_cluster(parse_cluster(written)) == written


def test_an_unknown_accelerator_gets_the_nearest_names():
    error = refusal(parse_cluster, "h10:8x2")
    assert error.key == "cluster.unknown_accelerator"
    assert "h100" in str(error)
    assert "gb200" in str(refusal(parse_cluster, "gb20:8"))
    assert "4090" in str(refusal(parse_cluster, "rtx4900:2"))


def test_an_accelerator_of_several_kinds_must_be_named_in_full():
    error = refusal(parse_cluster, "a100:8x2")
    assert error.key == "cluster.which_accelerator"
    assert "a100-40gb" in str(error)
    assert "a100-80gb" in str(error)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "wrong_form"),
        (":8x2", "wrong_form"),
        ("h100:", "wrong_form"),
        ("h100:8x", "wrong_form"),
        ("h100:8x2x2", "wrong_form"),
        ("h100:-8", "wrong_form"),
        ("h100:8.5x2", "wrong_form"),
        ("h100:eight", "wrong_form"),
        ("h100:0x4", "no_ranks"),
        ("h100:8x0", "no_ranks"),
        ("h100:8x9999999", "too_many_ranks"),
        ("h100:8x2,", "option_form"),
        ("h100:8x2,fast", "option_form"),
        ("h100:8x2,ib=", "unknown_link"),
        ("h100:8x2,ib=ndr", "unknown_link"),
        ("h100:8x2,inter=nvlink4", "unknown_link"),
        ("h100:8x2,intra=nvlnk4", "unknown_link"),
        ("h100:8x2,speed=4", "unknown_option"),
        ("h100:8x2,pod=2,pod=3", "option_twice"),
        ("h100:8x2,ib=ndr400,eth=10", "option_twice"),
        ("h100:8x2,oversub=0.5", "option_number"),
        ("h100:8x2,cards=0", "option_above"),
        ("h100:8x2,cards=nan", "option_above"),
        ("h100:8x2,price=inf", "option_number"),
        ("h100:8x2,pod=1.5", "option_number"),
    ],
)
def test_what_can_not_be_meant_is_refused(text, key):
    assert refusal(parse_cluster, text).key == f"cluster.{key}"


FILE = """\
name: ours
accelerator: h100
ranks_per_node: 8
num_nodes: 4
inter:
  name: ib-ndr400
  ratio: 0.7
  source: measured here
oversubscription: 2
host_memory_bytes: 2.0e12
price_per_rank_hour: 1.9
"""


def test_a_file_changes_what_it_names_and_keeps_the_rest():
    cluster = parse_cluster_file(FILE, file="c.yaml")
    assert cluster.name == "ours"
    assert cluster.inter.ratio == 0.7
    assert cluster.inter.bytes_per_s == LINKS["ib-ndr400"].bytes_per_s
    assert cluster.inter.ratio_source.where == "measured here"
    assert cluster.intra == LINKS["nvlink4"]
    assert (cluster.oversubscription, cluster.host_memory_bytes) == (2, 2_000_000_000_000)
    assert refusal(format_cluster, cluster).key == "cluster.no_short_form"


OWN = """\
accelerator:
  name: Chip 1
  peak_flops_per_s: {bfloat16: 1e15}
  memory_bytes: 1e11
  memory_bytes_per_s: 4e12
ranks_per_node: 4
num_nodes: 2
intra: {name: wire, bytes_per_s: 2e11, latency_s: 1e-6}
inter: {name: net, bytes_per_s: 25e9, latency_s: 5e-6, ratio: 0.9}
"""


def test_a_file_may_describe_a_machine_nobody_knows():
    cluster = parse_cluster_file(OWN, file="c.yaml")
    assert cluster.accelerator.peak_flops_per_s["bfloat16"] == 1e15
    assert cluster.intra.latency_s == 1e-6
    assert cluster.network_bytes_per_s == 25e9


@pytest.mark.parametrize("text", [FILE, OWN, "accelerator: gb200\n", "accelerator: 4090\nranks_per_node: 8\n"])
def test_a_written_file_reads_back_the_same(text):
    cluster = parse_cluster_file(text, file="c.yaml")
    written = format_cluster_file(cluster)
    again = parse_cluster_file(written, file="other.yaml")
    assert again == cluster
    assert format_cluster_file(again) == written


def test_a_measured_link_survives_its_file():
    measured = plain_link(
        name="here", bytes_per_s=1.25e9, latency_s=3.5e-5, source=Source(where="a probe", confidence="secondary")
    )
    cluster = replace(parse_cluster("cpu:2"), intra=measured)
    again = parse_cluster_file(format_cluster_file(cluster), file="c.yaml")
    assert again == cluster


@pytest.mark.parametrize(
    ("text", "key", "place"),
    [
        ("accelerator: h100\nnodes: 4\n", "unknown_key", "c.yaml:2"),
        ("accelerator: h100\nnum_nodes: 4\nnum_nodes: 5\n", "key_twice", "c.yaml:3"),
        ("accelerator: h100\nnum_nodes: 0\n", "not_whole", "c.yaml:2"),
        ("accelerator: h100\nnum_nodes: 100000000\n", "too_many_ranks", "c.yaml"),
        ("accelerator: h100\ncards_per_node: 0\n", "not_above", "c.yaml:2"),
        (OWN.replace("memory_bytes: 1e11", "memory_bytes: 0"), "not_whole", "c.yaml:4"),
        (OWN.replace("4e12", "0"), "not_above", "c.yaml:5"),
        ("accelerator: h100\nnum_nodes: many\n", "not_number", "c.yaml:2"),
        ("accelerator: h100\nranks_per_node: 2.5\n", "not_whole", "c.yaml:2"),
        ("accelerator: h100\noversubscription: [1]\n", "not_number", "c.yaml:2"),
        ("num_nodes: 4\n", "missing_key", "c.yaml"),
        ("", "missing_key", "c.yaml"),
        ("- h100\n", "not_mapping", "c.yaml:1"),
        ("accelerator: h100\ninter: {name: ib-ndr400, ratio: 1.5}\n", "ratio_above_one", "c.yaml:2"),
        ("accelerator: h100\ninter:\n  name: ib-ndr\n", "unknown_link", "c.yaml:3"),
        ("accelerator: h100\ninter: {bytes_per_s: 1}\n", "missing_key", "c.yaml:2"),
        ("accelerator: {name: X}\n", "missing_key", "c.yaml:1"),
        ("accelerator: h100\nname: [a\n", "broken_yaml", "c.yaml:3"),
        ("accelerator: h9000\n", "unknown_accelerator", ""),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(text, key, place):
    error = refusal(parse_cluster_file, text, file="c.yaml")
    assert error.key == f"cluster.{key}"
    assert place in str(error)


def test_a_path_is_read_and_a_short_form_is_not(tmp_path):
    path = tmp_path / "ours.yaml"
    path.write_text(FILE, encoding="utf-8")
    assert load_cluster(str(path)).name == "ours"
    assert load_cluster("h100:8x2").num_ranks == 16
    assert refusal(load_cluster, str(tmp_path / "none.yaml")).key == "cluster.unreadable"
    path.write_bytes(b"\xff\xfe")
    assert refusal(load_cluster, str(path)).key == "cluster.unreadable"
