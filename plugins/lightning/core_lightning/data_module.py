"""The data module, with Lightning's names."""

from __future__ import annotations

from core import DataModule


class LightningDataModule(DataModule):
    """All that concerns a run's data in one object; see `core.DataModule`."""

    name: str | None = None
    CHECKPOINT_HYPER_PARAMS_KEY = "datamodule_hyper_parameters"
    CHECKPOINT_HYPER_PARAMS_NAME = "datamodule_hparams_name"
    CHECKPOINT_HYPER_PARAMS_TYPE = "datamodule_hparams_type"

    def __init__(self) -> None:
        super().__init__()
