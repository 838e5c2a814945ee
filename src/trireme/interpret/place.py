"""Where in the user's code something happened: the module and the line, read from a traceback."""

from __future__ import annotations

from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from torch import nn

_OURS = ("torch.", "trireme.interpret", "trireme.parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The innermost module of the tree and the line nearest to torch that isn't torch's."""

    module: str
    line: str


def place_of(traceback: TracebackType | None, root: nn.Module) -> Place:
    """Give the place in the user's code that a traceback leads through last."""
    names = {id(module): name for name, module in root.named_modules()}
    path, line = "", "?"
    while traceback is not None:
        frame = traceback.tb_frame
        if not _is_ours(frame):
            line = f"{frame.f_code.co_filename}:{traceback.tb_lineno}"
            owner: Any = frame.f_locals.get("self")
            path = names.get(id(owner), path)
        traceback = traceback.tb_next
    return Place(module=path or type(root).__name__, line=line)


def _is_ours(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name == "torch" or name.startswith(_OURS)
