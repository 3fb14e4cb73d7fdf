"""The data module, with Lightning's names."""

from __future__ import annotations

from core import DataModule


class LightningDataModule(DataModule):
    """All that concerns a run's data in one object; see `core.DataModule`."""

    name: str | None = None

    def __init__(self) -> None:
        super().__init__()
