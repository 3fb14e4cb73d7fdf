"""The conformance suites of core-tensorboard. Imported by `core check` and the tests only: it needs
pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core_testing import LoggerConformance

if TYPE_CHECKING:
    from pathlib import Path

    from core import Logger


class TestTensorBoard(LoggerConformance):
    """Event files, read by TensorBoard's own library."""

    alias = "tensorboard"
    heavy_modules = ("tensorboard",)
    requires = "tensorboard"

    def read(self, logger: Logger, folder: Path) -> list[tuple[int, str, float]]:
        """The values that have arrived."""
        from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
            EventAccumulator,
        )

        runs = {file.parent for file in folder.rglob("events.out.tfevents.*")}
        events = [EventAccumulator(str(run)).Reload() for run in runs]
        return [
            (at.step, name, at.value)
            for one in events
            for name in one.Tags()["scalars"]
            for at in one.Scalars(name)
        ]
