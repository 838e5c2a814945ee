"""What a verification found, for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trireme.verify.compare import Comparison, Worst
from trireme.words import say

_NUM_WORST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One layout of one model against one device.

    ``is_single_inside``: the module computes a part in fp32 though its weights are fp64, so fp32 limits hold.
    ``local_param_ratios``: parameters that each rank holds over all of them.
    """

    model: str
    layout: str
    ranks: int
    dtype: str
    is_single_inside: bool
    shapes: tuple[tuple[int, int], ...]
    comparison: Comparison
    path: str
    local_param_ratios: tuple[float, ...]
    notices: tuple[str, ...]
    fault: str | None
    verify_s: float

    @property
    def ok(self) -> bool:
        """Whether rounding explains every difference."""
        return self.comparison.is_equal

    @property
    def local_param_ratio(self) -> float:
        """Parameters of the rank that holds most, over all of them."""
        return max(self.local_param_ratios)

    @property
    def worst_error(self) -> float:
        """The largest of all errors."""
        found = self.comparison
        return max(found.loss_error, found.norm_error, found.worst_grad_error, found.worst_param_error)

    def to_json(self) -> dict[str, Any]:
        """Give all of it as JSON; what is not finite is null."""
        found = self.comparison
        fields = {
            "ok": self.ok,
            "model": self.model,
            "layout": self.layout,
            "ranks": self.ranks,
            "dtype": self.dtype,
            "single_precision_inside": self.is_single_inside,
            "steps": len(self.shapes),
            "shapes": [list(shape) for shape in self.shapes],
            "loss_error": found.loss_error,
            "norm_error": found.norm_error,
            "worst_grad_error": found.worst_grad_error,
            "worst_param_error": found.worst_param_error,
            "loss_tolerance": found.tolerance.loss_error,
            "grad_tolerance": found.tolerance.grad_error,
            "param_tolerance": found.tolerance.param_error,
            "worst_names": found.worst_names(limit=_NUM_WORST),
            "worst": [_worst_json(each) for each in found.tensors[:_NUM_WORST]],
            "missing": list(found.missing),
            "extra": list(found.extra),
            "path": self.path,
            "local_param_ratio": self.local_param_ratio,
            "local_param_ratios": list(self.local_param_ratios),
            "notices": list(self.notices),
            "fault": self.fault,
            "seconds": round(self.verify_s, 3),
        }
        return {name: _plain(value) for name, value in fields.items()}

    def lines(self) -> Iterator[str]:
        """Give it as lines to read."""
        found = self.comparison
        yield say(
            "verify.head",
            model=self.model,
            layout=self.layout,
            ranks=self.ranks,
            dtype=self.dtype,
            steps=len(self.shapes),
        )
        if self.fault:
            yield say("verify.head_fault", fault=self.fault)
        yield say("verify.head_path", path=self.path, ratio=f"{self.local_param_ratio:.3f}")
        yield ""
        yield from _table(
            (say("verify.row_loss"), found.loss_error, found.tolerance.loss_error),
            (say("verify.row_norm"), found.norm_error, found.tolerance.grad_error),
            (say("verify.row_gradients"), found.worst_grad_error, found.tolerance.grad_error),
            (say("verify.row_parameters"), found.worst_param_error, found.tolerance.param_error),
        )
        yield ""
        yield from self._worst_lines()
        yield from (say("verify.notice", text=line) for line in self.notices)
        if self.is_single_inside:
            yield say("verify.single_inside")
        yield say("verify.equal") if self.ok else say("verify.not_equal", names=", ".join(found.worst_names()) or "-")

    def _worst_lines(self) -> Iterator[str]:
        found = self.comparison
        if found.missing:
            yield say("verify.missing", names=", ".join(found.missing))
        if found.extra:
            yield say("verify.extra", names=", ".join(found.extra))
        yield say("verify.worst")
        for each in _worst_rows(found):
            kind = say("verify.kind_gradient") if each.kind == "gradient" else say("verify.kind_parameter")
            yield say("verify.worst_row", error=f"{each.error:8.1e}", name=each.name, kind=kind, step=each.step)


def _worst_rows(found: Comparison) -> list[Worst]:
    """Give what the names were chosen by: of each, its error in the first step that is wrong."""
    by_name = {name: number for number, name in enumerate(found.worst_names(limit=_NUM_WORST))}
    rows: dict[str, Worst] = {}
    for each in found.rows_to_look_at():
        if each.name in by_name:
            rows.setdefault(each.name, each)
    return sorted(rows.values(), key=lambda each: by_name[each.name])


def _table(*rows: tuple[str, float, float]) -> Iterator[str]:
    yield say("verify.columns")
    for label, error, limit in rows:
        mark = say("verify.fine") if error <= limit else say("verify.too_far")
        yield say("verify.row", label=label, error=f"{error:8.1e}", limit=f"{limit:8.1e}", mark=mark)


def _worst_json(each: Worst) -> dict[str, Any]:
    return {"name": each.name, "kind": each.kind, "step": each.step, "error": _plain(each.error)}


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
