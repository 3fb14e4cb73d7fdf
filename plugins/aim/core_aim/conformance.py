"""The conformance suites of core-aim. Imported by `core check` and the tests only: it needs
pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from core_testing import LoggerConformance

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.filterwarnings("default")  # Aim's own use of SQLAlchemy's older names
class TestAim(LoggerConformance):
    """Aim, with a repository in a folder."""

    alias = "aim"
    heavy_modules = ("aim",)
    requires = "aim"
    own_process = True  # the library keeps its databases open

    def read(self, logger: Any, folder: Path) -> list[tuple[int, str, float]]:
        """The values in the repository; a run that is read is opened, since Aim's own index is made
        by its server.
        """
        import aim

        logger.save()
        found = []
        for version in aim.Repo(str(folder)).list_all_runs():
            run = aim.Run(
                version,
                repo=str(folder),
                system_tracking_interval=None,
                capture_terminal_logs=False,
            )
            for metric in run.metrics():
                found += [(step, metric.name, value) for step, (value, _, _) in metric.data.items()]
            run.close()
        return found
