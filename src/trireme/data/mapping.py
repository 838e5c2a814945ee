"""The user's ``package.module:function``: found, checked, and known by its source."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from trireme.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class MapFunction:
    """A function that turns a record into a record, a text, or None to drop it."""

    spec: str
    function: Callable[[dict[str, Any]], Any]
    fingerprint: str
    """xxh3-128 of the module's source: another version of the module never meets the cache of this one."""


def load_map(spec: str, *, setting: str = "data.sources: map") -> MapFunction:
    """Import the function that ``spec`` names; ``setting`` is the key a message blames.

    Raises:
        DataError: The form is wrong, the module fails to import, or it has no such function.
    """
    module_name, colon, name = spec.partition(":")
    if not (colon and module_name and name):
        raise DataError("data.map_form", spec=spec, setting=setting)
    module = _import(module_name, spec, setting)
    function = module
    for part in name.split("."):
        function = getattr(function, part, None)
        if function is None:
            raise DataError(
                "data.map_no_function", spec=spec, setting=setting, module=module_name, names=_functions_of(module)
            )
    if not callable(function):
        raise DataError("data.map_not_callable", spec=spec, setting=setting, kind=type(function).__name__)
    return MapFunction(spec=spec, function=function, fingerprint=_fingerprint(module, function))


def _import(name: str, spec: str, setting: str) -> Any:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # a module beside the run file is found as `python script.py` would find it
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise DataError("data.map_no_module", spec=spec, setting=setting, module=error.name, folder=here) from error
        raise DataError("data.map_import_failed", spec=spec, setting=setting, reason=_one_line(error)) from error
    except Exception as error:
        raise DataError("data.map_import_failed", spec=spec, setting=setting, reason=_one_line(error)) from error


def _functions_of(module: Any) -> str:
    names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    return ", ".join(names[:12]) or "-"


def _fingerprint(module: Any, function: Any) -> str:
    path = getattr(module, "__file__", None)
    if path and Path(path).is_file():
        return xxhash.xxh3_128_hexdigest(Path(path).read_bytes())
    code = getattr(function, "__code__", None)
    return xxhash.xxh3_128_hexdigest(code.co_code + repr(code.co_consts).encode() if code else repr(function).encode())


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def error_place(error: BaseException, *, function_file: str | None) -> str:
    """Return ``file:line`` of the deepest frame in the user's own file, empty if there is none."""
    frame, place = error.__traceback__, ""
    while frame is not None:
        if function_file and frame.tb_frame.f_code.co_filename == function_file:
            place = f"{function_file}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place
