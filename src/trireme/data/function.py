"""Find a user's function by its name, ``package.module:function``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import reduce
from typing import Any

from trireme.errors import DataError


def load_function(name: str, *, setting: str) -> Callable[..., Any]:
    """Return the function ``name`` names; modules in the current folder are found too.

    Raises:
        DataError: The name is malformed, or there is no such module or function; ``setting`` is the key of
            the settings that gave it.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise DataError("sample.function_malformed", setting=setting, name=name)
    module = _import(module_name, setting=setting, name=name)
    try:
        function: Any = reduce(getattr, path.split("."), module)
    except AttributeError as error:
        offered = ", ".join(sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))[:10])
        raise DataError(
            "sample.function_missing", setting=setting, name=name, module=module_name, offered=offered or "-"
        ) from error
    if not callable(function):
        raise DataError("sample.function_not_callable", setting=setting, name=name, kind=type(function).__name__)
    found: Callable[..., Any] = function
    return found


def _import(module_name: str, *, setting: str, name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # an installed command does not look in the current folder by itself
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module is there; what it imports is not: its own traceback says more
        raise DataError("sample.module_missing", setting=setting, name=name, module=module_name, folder=here) from error
