"""The conformance suites of core-trackio. Imported by `core check` and the tests only: it needs
pytest.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from typing import TYPE_CHECKING, Any

import pytest

from core_testing import LoggerConformance

if TYPE_CHECKING:
    from pathlib import Path


class TestTrackio(LoggerConformance):
    """Trackio, with a database in a folder."""

    alias = "trackio"
    heavy_modules = ("trackio",)
    requires = "trackio"
    own_process = True  # the folder of the database is chosen when the library is imported

    @pytest.fixture(autouse=True)
    def _own_folder(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRACKIO_DIR", str(folder / "trackio"))
        for name in [name for name in sys.modules if name.partition(".")[0] == "trackio"]:
            monkeypatch.delitem(sys.modules, name)

    def read(self, logger: Any, folder: Path) -> list[tuple[int, str, float]]:
        """The values in the database."""
        found = []
        for path in (folder / "trackio").glob("*.db"):
            connection = sqlite3.connect(path)
            for step, metrics in connection.execute("SELECT step, metrics FROM metrics"):
                found += [(step, name, value) for name, value in json.loads(metrics).items()]
            connection.close()
        return found
