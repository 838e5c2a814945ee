"""What every test starts from: English messages, one thread, a cache of its own, no ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before numpy and torch are imported anywhere: ranks and workers of a test share two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TRIREME_LANG"] = "en"
for _name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(_name, None)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep tokenised shards out of the home folder; tests of one session share them."""
    os.environ["TRIREME_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def repository() -> Path:
    """Root of the checkout."""
    return Path(__file__).parents[1]
