"""Where each setting of a run came from, kept when the run goes on with its own settings."""

from __future__ import annotations

import json
from pathlib import Path

from trireme.config import Loaded
from trireme.observe import RunFolder, read_state

_ORIGINS_NAME = "config_origins.json"


def is_own_config(path: Path) -> bool:
    """Say whether ``path`` is what a run wrote down of its settings, rather than a file that a person wrote."""
    return path.name == "config.yaml" and read_state(path.parent) is not None


def origins_of(loaded: Loaded, *, folder: RunFolder) -> dict[str, str]:
    """Return the place of every value, as text; a value from the run's own settings keeps the place it had."""
    places = {key: str(origin) for key, origin in loaded.origins.items()}
    if loaded.path is None or not is_own_config(loaded.path) or not _is_in(folder, loaded.path):
        return places
    before = _read(folder.path / _ORIGINS_NAME)
    kept = {key: before[key] for key in places if loaded.origins[key].layer == "file" and key in before}
    return places | kept


def _is_in(folder: RunFolder, path: Path) -> bool:
    return path.parent.resolve() == folder.path.resolve()


def _read(path: Path) -> dict[str, str]:
    try:
        places = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # as good as unknown: the places are then lines of config.yaml
        return {}
    return {str(key): str(place) for key, place in places.items()} if isinstance(places, dict) else {}
