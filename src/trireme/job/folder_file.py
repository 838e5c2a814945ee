"""The small JSON files that lie beside a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trireme.errors import ModelError


def read_folder_file(path: Path) -> dict[str, Any]:
    """Return the JSON object in ``path``, empty if there is no such file.

    Raises:
        ModelError: It is there and can't be read.
    """
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError("model.folder_config_bad", path=path, reason=error) from error
    return values if isinstance(values, dict) else {}
