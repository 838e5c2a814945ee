"""Read a cluster from a YAML file: any figure may be given, an unknown key or a wrong type is refused with its line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trireme.cluster.catalog import DeviceSpec
from trireme.cluster.link import Link, plain_link
from trireme.cluster.machine import Cluster
from trireme.cluster.node import Node
from trireme.cluster.parse import (
    build_cluster,
    check_sizes,
    find_link,
    find_node,
    near_names,
    parse_cluster,
    with_intra,
)
from trireme.cluster.source import GIVEN, Source
from trireme.errors import ConfigError

_DTYPES = ("float64", "float32", "tfloat32", "float16", "bfloat16", "float8", "float4")
_ACCELERATOR_KEYS = ("name", "peak_flops_per_s", "memory_bytes", "memory_bytes_per_s", "source", "date")
_LINK_KEYS = ("name", "bytes_per_s", "latency_s", "ratio", "source", "date")
KEYS = (
    "name",
    "accelerator",
    "ranks_per_node",
    "num_nodes",
    "intra",
    "inter",
    "cards_per_node",
    "domain_nodes",
    "pod_nodes",
    "oversubscription",
    "host_memory_bytes",
    "price_per_rank_hour",
    "power_w_per_rank",
)
"""Keys of a cluster's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A value of the file with its place; ``value`` is a text, a mapping of entries, or None."""

    value: Any
    place: str


def load_cluster(text: str) -> Cluster:
    """Return the cluster that a short form names or a file ending in ``.yaml`` or ``.yml`` describes.

    Raises:
        ConfigError: As ``parse_cluster`` and ``parse_cluster_file``; or the file can't be read.
    """
    if not text.endswith((".yaml", ".yml")):
        return parse_cluster(text)
    try:
        written = Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError("cluster.unreadable", path=text, reason=reason) from None
    return parse_cluster_file(written, file=text)


def parse_cluster_file(text: str, *, file: str) -> Cluster:
    """Return the cluster that a YAML text describes; ``file`` names it in messages.

    ``accelerator`` is a short name or a mapping of figures, ``intra`` and ``inter`` a link's name, or a mapping:
    a known link's with figures changed, or one of its own with ``bytes_per_s`` and ``latency_s``. With a short
    name the rest is what its nodes usually have.

    Raises:
        ConfigError: Not YAML, a key twice, unknown or missing, a value of the wrong kind; with file and line.
    """
    keys = _mapping(_read(text, file=file), known=KEYS)
    ranks, nodes = _whole(keys, "ranks_per_node"), _whole(keys, "num_nodes")
    accelerator, node = _accelerator(_required(keys, "accelerator", place=file), place=file)
    if node is not None:
        cluster = build_cluster(node, ranks_per_node=ranks or node.ranks, num_nodes=nodes or 1)
    else:
        cluster = Cluster(
            name=file,
            accelerator=accelerator,
            ranks_per_node=ranks or 1,
            num_nodes=nodes or 1,
            intra=_link(_required(keys, "intra", place=file)),
            inter=_link(_required(keys, "inter", place=file), networks_only=True),
            cards_per_node=ranks or 1,
        )
    check_sizes(cluster.ranks_per_node, cluster.num_nodes, place=file)
    return replace(cluster, **{"name": file, "accelerator": accelerator, **_others(keys)})


def _others(keys: Mapping[str, _Entry]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "name" in keys:
        found["name"] = _text(keys["name"], key="name")
    if "intra" in keys:
        found.update(with_intra(_link(keys["intra"])))
    if "inter" in keys:
        found["inter"] = _link(keys["inter"], networks_only=True)
    for key in ("domain_nodes", "pod_nodes", "host_memory_bytes"):
        if key in keys:
            found[key] = _whole(keys, key)
    for key, least in (("cards_per_node", 0.0), ("oversubscription", 1.0)):
        if key in keys:
            found[key] = _number(keys[key], key=key, least=least, above=least == 0.0)
    for key in ("price_per_rank_hour", "power_w_per_rank"):
        if key in keys:
            found[key] = _number(keys[key], key=key, least=0.0)
    return found


def _accelerator(entry: _Entry, *, place: str) -> tuple[DeviceSpec, Node | None]:
    if not isinstance(entry.value, dict):
        node = find_node(_text(entry, key="accelerator"), text=entry.place)
        return node.accelerator, node
    keys = _mapping(entry, known=_ACCELERATOR_KEYS)
    name = _text(_required(keys, "name", place=entry.place), key="name")
    peaks = _mapping(_required(keys, "peak_flops_per_s", place=entry.place), known=_DTYPES)
    source = _source(keys)
    spec = DeviceSpec(
        name=name,
        words=frozenset(name.lower().split()),
        peak_flops_per_s=MappingProxyType(
            {dtype: _number(value, key=dtype, least=0.0, above=True) for dtype, value in peaks.items()}
        ),
        memory_bytes=_whole_of(_required(keys, "memory_bytes", place=entry.place), key="memory_bytes"),
        memory_bytes_per_s=_figure(keys, "memory_bytes_per_s", place=entry.place),
        link_bytes_per_s=None,
        source=source.where,
        date=source.date,
        confidence=source.confidence,
    )
    return spec, None


def _link(entry: _Entry, *, networks_only: bool = False) -> Link:
    if not isinstance(entry.value, dict):
        return find_link(_text(entry, key="link"), place=entry.place, networks_only=networks_only)
    keys = _mapping(entry, known=_LINK_KEYS)
    name = _text(_required(keys, "name", place=entry.place), key="name")
    source = _source(keys)
    if "latency_s" in keys:
        return plain_link(
            name=name,
            bytes_per_s=_figure(keys, "bytes_per_s", place=entry.place),
            latency_s=_number(keys["latency_s"], key="latency_s", least=0.0),
            ratio=_ratio(keys, otherwise=1.0),
            source=source,
        )
    known = find_link(name, place=keys["name"].place, networks_only=networks_only)
    rate = _figure(keys, "bytes_per_s", place=entry.place) if "bytes_per_s" in keys else known.bytes_per_s
    return replace(known, bytes_per_s=rate, ratio=_ratio(keys, otherwise=known.ratio), ratio_source=source)


def _ratio(keys: Mapping[str, _Entry], *, otherwise: float) -> float:
    if "ratio" not in keys:
        return otherwise
    ratio = _number(keys["ratio"], key="ratio", least=0.0, above=True)
    if ratio > 1:
        raise ConfigError("cluster.ratio_above_one", place=keys["ratio"].place, value=f"{ratio:g}")
    return ratio


def _source(keys: Mapping[str, _Entry]) -> Source:
    where = _text(keys["source"], key="source") if "source" in keys else GIVEN.where
    date = _text(keys["date"], key="date") if "date" in keys else GIVEN.date
    return Source(where=where, date=date, confidence=GIVEN.confidence)


def _figure(keys: Mapping[str, _Entry], key: str, *, place: str) -> float:
    return _number(_required(keys, key, place=place), key=key, least=0.0, above=True)


def _required(keys: Mapping[str, _Entry], key: str, *, place: str) -> _Entry:
    if key not in keys:
        raise ConfigError("cluster.missing_key", place=place, key=key)
    return keys[key]


def _text(entry: _Entry, *, key: str) -> str:
    if not isinstance(entry.value, str) or not entry.value:
        raise ConfigError("cluster.not_text", place=entry.place, key=key)
    return entry.value


def _whole(keys: Mapping[str, _Entry], key: str) -> int | None:
    return _whole_of(keys[key], key=key) if key in keys else None


def _whole_of(entry: _Entry, *, key: str) -> int:
    number = _number(entry, key=key, least=0.0)
    if number != int(number) or number < 1:
        raise ConfigError("cluster.not_whole", place=entry.place, key=key, value=_shown(entry))
    return int(number)


def _number(entry: _Entry, *, key: str, least: float, above: bool = False) -> float:
    try:
        number = float(entry.value)
    except (TypeError, ValueError):
        number = float("nan")
    if not (number > least if above else number >= least) or number == float("inf"):
        rule = "cluster.not_above" if above else "cluster.not_number"
        raise ConfigError(rule, place=entry.place, key=key, value=_shown(entry), least=f"{least:g}")
    return number


def _shown(entry: _Entry) -> str:
    return repr(entry.value) if isinstance(entry.value, str) else type(entry.value).__name__


def _mapping(entry: _Entry, *, known: Iterable[str]) -> dict[str, _Entry]:
    names = tuple(known)
    if not isinstance(entry.value, dict):
        raise ConfigError("cluster.not_mapping", place=entry.place, keys=" ".join(names))
    for key, value in entry.value.items():
        if key not in names:
            near = near_names(str(key), known=names, limit=1)[0]
            raise ConfigError("cluster.unknown_key", place=value.place, key=key, near=near, keys=" ".join(names))
    return dict(entry.value)


def _read(text: str, *, file: str) -> _Entry:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError("cluster.broken_yaml", place=f"{file}:{line}", reason=error.problem or "") from None
    except yaml.YAMLError as error:
        raise ConfigError("cluster.broken_yaml", place=file, reason=str(error).splitlines()[0]) from None
    return _Entry(value={}, place=file) if root is None else _entry(root, file=file, depth=0)


def _entry(node: Any, *, file: str, depth: int) -> _Entry:
    import yaml

    place = f"{file}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.ScalarNode):
        return _Entry(value=node.value, place=place)
    if not isinstance(node, yaml.MappingNode) or depth > 3:
        return _Entry(value=None, place=place)
    found: dict[str, _Entry] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        value = _entry(value_node, file=file, depth=depth + 1)
        line = f"{file}:{key_node.start_mark.line + 1}"
        if key in found:
            raise ConfigError("cluster.key_twice", place=line, key=key, first=found[key].place)
        found[key] = _Entry(value=value.value, place=line)
    return _Entry(value=found, place=place)
