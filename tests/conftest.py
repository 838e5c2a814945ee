"""What every test starts from: English messages, one thread, a cache of its own, no ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Before numpy and torch are imported anywhere: ranks and workers of a test share two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TRIREME_LANG"] = "en"
for _name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(_name, None)


# The same examples in every run: green means green tomorrow. To look for new ones: --hypothesis-profile=explore
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep tokenised shards out of the home folder; tests of one session share them."""
    os.environ["TRIREME_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def repository() -> Path:
    """Root of the checkout."""
    return Path(__file__).parents[1]
