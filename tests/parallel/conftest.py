"""What several files of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for what processes compile, so that others need not compile it again."""
    return tmp_path_factory.mktemp("compiled")
