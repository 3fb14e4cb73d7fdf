"""The conformance suites of core-mlflow. Imported by `core check` and the tests only: it needs
pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from core_testing import LoggerConformance

if TYPE_CHECKING:
    from pathlib import Path

    from core import Logger


class TestMLFlow(LoggerConformance):
    """MLflow, with a store in a folder."""

    alias = "mlflow"
    heavy_modules = ("mlflow",)
    requires = "mlflow"

    @pytest.fixture(autouse=True)
    def _local_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")

    def make_in(self, folder: Path) -> Logger:
        """A logger with a store in the folder."""
        return self.make(save_dir=str(folder), tracking_uri=(folder / "mlruns").as_uri())

    def read(self, logger: Any, folder: Path) -> list[tuple[int, str, float]]:
        """The values that have arrived."""
        client = logger.experiment
        runs = client.search_runs(
            [experiment.experiment_id for experiment in client.search_experiments()]
        )
        return [
            (one.step, name, one.value)
            for run in runs
            for name in run.data.metrics
            for one in client.get_metric_history(run.info.run_id, name)
        ]
