"""What modules do to fill themselves again, run on the meta device while it is written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trireme.interpret.initial_record import META, Recording, recording_of, watching_operations

_RESETS = ("reset_parameters", "_reset_parameters")
_DONE = "_is_hf_initialized"
"""Where modules of Hugging Face note that they were filled."""


def record_initial(module: nn.Module) -> tuple[Recording, bool]:
    """Give how a module on meta is filled, and whether that is all its own code does.

    Without that, each module's own method counts, children first, and then that of the tree (``init_weights()``, or
    ``_init_weights`` applied to every module). Modules of Hugging Face fill themselves on meta only when asked, so
    they are asked in any case.
    """
    recording = recording_of(module)
    seen = recording is not None and all(recording.knows(each) for each in _on_meta(module))
    if recording is None or not seen:
        recording = Recording()
    # Numbers that are drawn for real on the way must be everyone's.
    with torch.no_grad(), torch.random.fork_rng(devices=[]), _ties_apart(module), watching_operations(recording):
        torch.manual_seed(0)
        if not seen:
            _reset(module)
        _ask(module, seen=seen)
    return recording, seen or _is_hugging_face(module) or _fills_all(module)


def _on_meta(module: nn.Module) -> list[Tensor]:
    return [each for each in (*module.parameters(), *module.buffers()) if each.is_meta]


def _reset(module: nn.Module) -> None:
    for child in module.children():
        _reset(child)
    for name in _RESETS:
        method = getattr(module, name, None)
        if callable(method) and _has_meta(module):
            method()


def _has_meta(module: nn.Module) -> bool:
    return any(each.is_meta for each in (*module.parameters(), *module.buffers()))


def _ask(module: nn.Module, *, seen: bool) -> None:
    """Have the tree fill itself, part by part where only parts know how."""
    if _is_hugging_face(module):
        if not getattr(module, _DONE, False):
            _ask_hugging_face(module)
        return
    for child in module.children():
        _ask(child, seen=seen)
    if seen:
        return
    single = getattr(module, "_init_weights", None)
    if _fills_all(module):
        module.init_weights()  # type: ignore[operator]
    elif callable(single) and _takes(single, 1):
        module.apply(single)


def _fills_all(module: nn.Module) -> bool:
    """Whether a module has a method that fills all of it."""
    method = getattr(module, "init_weights", None)
    return callable(method) and _takes(method, 0)


def _takes(method: Any, count: int) -> bool:
    """Whether a method can be called with so many arguments."""
    code = getattr(method, "__code__", None) or getattr(getattr(method, "__func__", None), "__code__", None)
    if code is None:
        return False
    defaults = len(getattr(method, "__defaults__", None) or ())
    return bool(code.co_argcount - 1 - defaults <= count <= code.co_argcount - 1)


def _is_hugging_face(module: nn.Module) -> bool:
    return hasattr(module, "initialize_weights") and hasattr(module, "_init_weights") and hasattr(module, "config")


def _ask_hugging_face(module: Any) -> None:
    marks = [(each, each.__dict__.pop(_DONE, None)) for each in module.modules()]
    try:
        module.initialize_weights()
    finally:
        for each, mark in marks:
            each.__dict__.pop(_DONE, None)
            if mark is not None:
                each.__dict__[_DONE] = mark


@contextmanager
def _ties_apart(module: nn.Module) -> Iterator[None]:
    """Let further names of a tied parameter stand for one of their own: the first name's values count."""
    known: set[int] = set()
    tied: list[tuple[nn.Module, str, nn.Parameter]] = []
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is None or not parameter.is_meta:
                continue
            if id(parameter) in known:
                tied.append((owner, name, parameter))
                owner._parameters[name] = nn.Parameter(
                    torch.empty_like(parameter, device=META), requires_grad=parameter.requires_grad
                )
            known.add(id(parameter))
    try:
        yield
    finally:
        for owner, name, parameter in tied:
            owner._parameters[name] = parameter
