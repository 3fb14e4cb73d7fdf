"""The conformance suites of core-comet. Imported by `core check` and the tests only: it needs
pytest.
"""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING, Any

from core_testing import LoggerConformance

if TYPE_CHECKING:
    from pathlib import Path


class TestComet(LoggerConformance):
    """Comet, offline."""

    alias = "comet"
    heavy_modules = ("comet_ml",)
    requires = "comet_ml"
    options = {
        "offline": True,
        **dict.fromkeys(("log_code", "log_env_details", "log_git_metadata"), False),
    }
    # its threads live as long as their process, and a process with threads can't be forked
    own_process = True

    def read(self, logger: Any, folder: Path) -> list[tuple[int, str, float]]:
        """The values in the archives, which are written when the experiment ends."""
        logger.finalize("interrupted")
        rows = [
            json.loads(line)
            for path in folder.rglob("*.zip")
            for line in zipfile.ZipFile(path).read("messages.json").splitlines()
        ]
        found = [row["payload"]["metric"] for row in rows if row["type"] == "metric_msg"]
        return [(each["step"], each["metricName"], each["metricValue"]) for each in found]
