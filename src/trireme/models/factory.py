"""A module from a user's own function: ``package.module:function`` or ``file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from trireme.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Factory:
    """A function of the user's that builds a module, and what is defined beside it."""

    module: ModuleType
    function: Callable[..., Any]


def build_from_factory(factory: str, arguments: Mapping[str, Any], *, seed: int) -> nn.Module:
    """Call the function that ``factory`` names and return its module.

    The global random state is set by ``seed`` for the call and put back afterwards.

    Raises:
        ModelError: The text has another form, names nothing, the call fails, or it returns no module.
    """
    function = find_factory(factory).function
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            built = function(**arguments)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ModelError(
                "model.factory_failed", factory=factory, arguments=dict(arguments), reason=reason
            ) from error
    if not isinstance(built, nn.Module):
        raise ModelError("model.factory_not_module", factory=factory, kind=type(built).__name__)
    return built


def find_factory(factory: str) -> Factory:
    """Import what the text names and return the function with the module it stands in.

    Raises:
        ModelError: The text has another form, or names nothing that can be called.
    """
    source, colon, name = factory.rpartition(":")
    if not colon or not source or not name.isidentifier():
        raise ModelError("model.factory_form", factory=factory)
    module = _import_file(factory, Path(source)) if source.endswith(".py") else _import_module(factory, source)
    function = getattr(module, name, None)
    if not callable(function):
        names = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise ModelError("model.factory_no_function", factory=factory, module=source, function=name, names=names or "-")
    return Factory(module=module, function=function)


def _import_module(factory: str, name: str) -> ModuleType:
    """Import ``name``; the working folder counts as a place to look, as it does for ``python -m``."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise _import_error(factory, name, error) from error


def _import_file(factory: str, path: Path) -> ModuleType:
    """Run a file as a module of its own name; its folder counts as a place to look for what it imports."""
    if not path.is_file():
        raise ModelError("model.factory_no_file", factory=factory, path=path)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    name = f"trireme_factory_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a .py file always has a spec"
    assert spec.loader is not None, "and a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _import_error(factory, str(path), error) from error
    return module


def _import_error(factory: str, module: str, error: Exception) -> ModelError:
    reason = f"{type(error).__name__}: {error}"
    return ModelError("model.factory_import", factory=factory, module=module, reason=reason)
