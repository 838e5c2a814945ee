"""plan.json: a plan written with stable order, and read with nothing unknown, missing or of another type let by."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from trireme.errors import LayoutError
from trireme.plan.layout import Layout, layout_mapping
from trireme.plan.plan import LAYER_RECOMPUTES, PLAN_FORMAT, LayerChoice, Plan, Prediction

_Item = TypeVar("_Item")
_LAYOUT_KEYS = tuple(layout_mapping(Layout()))
_TOP = (
    "format", "model", "layout", "cuts", "layers", "precision", "global_batch_seqs", "seq_len", "predictions",
    "model_hash", "cluster_hash", "trireme_version",
)  # fmt: skip


def format_plan(plan: Plan) -> str:
    """Write the plan as JSON: one line per layer and prediction, the same text for equal plans, fit for a diff."""
    head: dict[str, Any] = {
        "format": PLAN_FORMAT,
        "trireme_version": plan.trireme_version,
        "model": plan.model,
        "model_hash": plan.model_hash,
        "cluster_hash": plan.cluster_hash,
        "global_batch_seqs": plan.global_batch_seqs,
        "seq_len": plan.seq_len,
        "precision": plan.precision,
        "layout": layout_mapping(plan.layout),
    }
    lists: dict[str, list[Any]] = {
        "cuts": list(plan.cuts),
        "layers": [{"path": c.path, "recompute": c.recompute, "offload": c.offload} for c in plan.layers],
        "predictions": [{"name": p.name, "value": p.value, "low": p.low, "high": p.high} for p in plan.predictions],
    }
    parts = [f"  {json.dumps(key)}: {_dump(value)}" for key, value in head.items()]
    parts += [f"  {json.dumps(key)}: {_dump_list(items)}" for key, items in lists.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _dump_list(items: list[Any]) -> str:
    return "[\n" + ",\n".join(f"    {_dump(item)}" for item in items) + "\n  ]" if items else "[]"


def parse_plan(text: str) -> Plan:
    """Read a plan from JSON.

    Raises:
        LayoutError: It is no JSON, of another format, or a key is unknown, missing or of another type.
    """
    try:
        document = json.loads(text, object_pairs_hook=_no_key_twice)
    except (json.JSONDecodeError, RecursionError) as error:
        raise LayoutError("layout.plan_no_json", problem=str(error)) from None
    found = _object(document, place="plan", keys=None)
    if found.get("format") != PLAN_FORMAT or isinstance(found["format"], bool):
        raise LayoutError("layout.plan_format", found=found.get("format"), known=PLAN_FORMAT)
    found = _object(document, place="plan", keys=_TOP)
    return Plan(
        layout=_layout(found["layout"]),
        cuts=tuple(_text(cut, place=f"cuts[{i}]") for i, cut in enumerate(_list(found["cuts"], place="cuts"))),
        layers=_each(found["layers"], place="layers", read=_layer),
        predictions=_each(found["predictions"], place="predictions", read=_prediction),
        global_batch_seqs=_whole(found["global_batch_seqs"], place="global_batch_seqs"),
        seq_len=_whole(found["seq_len"], place="seq_len"),
        **{
            key: _text(found[key], place=key)
            for key in ("precision", "model", "model_hash", "cluster_hash", "trireme_version")
        },
    )


def _layout(value: Any) -> Layout:
    found = dict(_object(value, place="layout", keys=_LAYOUT_KEYS))
    vp, micro = (_whole(found.pop(key), place=f"layout.{key}") for key in ("vp", "micro"))
    layout = Layout(**found, vp=vp, microbatches_per_step=micro)
    if layout.schedule != found["schedule"]:  # 1f1b over several stages a rank is never written
        raise _wrong("layout.schedule", found["schedule"], wanted=layout.schedule)
    return layout


def _layer(value: Any, place: str) -> LayerChoice:
    layer = _object(value, place=place, keys=("path", "recompute", "offload"))
    if layer["recompute"] not in LAYER_RECOMPUTES:
        raise _wrong(f"{place}.recompute", layer["recompute"], wanted=" | ".join(LAYER_RECOMPUTES))
    if not isinstance(layer["offload"], bool):
        raise _wrong(f"{place}.offload", layer["offload"], wanted="true | false")
    path = _text(layer["path"], place=f"{place}.path")
    return LayerChoice(path=path, recompute=layer["recompute"], offload=layer["offload"])


def _prediction(value: Any, place: str) -> Prediction:
    found = _object(value, place=place, keys=("name", "value", "low", "high"))
    numbers = {key: _number(found[key], place=f"{place}.{key}") for key in ("value", "low", "high")}
    if not numbers["low"] <= numbers["value"] <= numbers["high"]:
        raise _wrong(place, value, wanted="low <= value <= high")
    return Prediction(name=_text(found["name"], place=f"{place}.name"), **numbers)


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise LayoutError("layout.plan_twice", key="plan", name=key)
        found[key] = value
    return found


def _object(value: Any, *, place: str, keys: tuple[str, ...] | None) -> Mapping[str, Any]:
    """Give a JSON object that has exactly these keys (any, where None)."""
    if not isinstance(value, dict):
        raise _wrong(place, value, wanted="{...}")
    for key in value if keys is not None else ():
        if key not in (keys or ()):
            near = (difflib.get_close_matches(key, keys or (), n=1, cutoff=0.5) or [", ".join(keys or ())])[0]
            raise LayoutError("layout.plan_unknown", place=place, key=key, near=near)
    for key in keys or ():
        if key not in value:
            raise LayoutError("layout.plan_missing", place=place, key=key)
    return value


def _each(value: Any, *, place: str, read: Callable[[Any, str], _Item]) -> tuple[_Item, ...]:
    return tuple(read(item, f"{place}[{i}]") for i, item in enumerate(_list(value, place=place)))


def _list(value: Any, *, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(place, value, wanted="[...]")
    return value


def _text(value: Any, *, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(place, value, wanted='"..."')
    return value


def _whole(value: Any, *, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(place, value, wanted="1, 2, ...")
    return value


def _number(value: Any, *, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _wrong(place, value, wanted="0.0")
    return value


def _wrong(place: str, value: Any, *, wanted: str) -> LayoutError:
    shown = json.dumps(value, ensure_ascii=False)
    return LayoutError("layout.plan_wrong", place=place, value=shown, wanted=wanted)
