"""On what a run ran: versions, machine, command; nothing that names a person or opens a door."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trireme import __version__

_PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "pyarrow", "pydantic", "transformers")
# Only what changes numbers or speed; everything else in the environment is nobody's business.
_VARIABLES = (
    "TRIREME_LANG",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
)


def environment() -> dict[str, Any]:
    """Return the facts as JSON: versions, OS, CPU, memory, accelerators, git commit, command line."""
    return {
        "trireme": __version__,
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "os": platform.platform(),
        "cpu": _cpu_name(),
        "cpu_cores": _usable_cores(),
        "memory_bytes": _memory_bytes(),
        "accelerators": _accelerators(),
        "git_commit": _git_commit(Path.cwd()),
        "command": [without_home(word) for word in _command()],
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def without_home(text: str) -> str:
    """Return ``text`` with the home folder, which names a person, as ``~``."""
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def _command() -> list[str]:
    first, *rest = sys.argv or [""]
    return [Path(first).name, *rest]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _usable_cores() -> int:
    """Cores this process may use, which in a container is less than the machine has."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _memory_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _accelerators() -> list[str]:
    """Names of the accelerators, if torch is in use already; a look here must not cost its import."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator().type
    name_of = getattr(getattr(torch, kind, None), "get_device_name", lambda index: kind)
    return [str(name_of(index)) for index in range(torch.accelerator.device_count())]


def _git_commit(folder: Path) -> str | None:
    """The commit of the folder we run in, ``+changes`` if files differ from it; None outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    return f"{commit}+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else commit


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
