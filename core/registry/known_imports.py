"""Names that people know from other trainers and look for here, each with what to write instead.

Packages with lazy exports answer imports by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


IMPORTS: Mapping[str, Mapping[str, str]] = {
    "core": {
        "LightningModule": "Write `from core import Module`.",
        "LightningDataModule": "Write `from core import DataModule`.",
        "LightningFabric": "Write `from core import Fabric`.",
        "LightningCLI": "Write `from core import cli_for`, and cli_for(Net, Data).",
        "ModelCheckpoint": "Write `from core.callbacks import ModelCheckpoint`.",
        "EarlyStopping": "Write `from core.callbacks import EarlyStopping`.",
        "LearningRateMonitor": "Write `from core.callbacks import LearningRateMonitor`.",
        "LearningRateFinder": "Write `from core.callbacks import LearningRateFinder`.",
        "BatchSizeFinder": "Write `from core.callbacks import BatchSizeFinder`.",
        "CSVLogger": "Write `from core.loggers import CSVLogger`.",
        "TensorBoardLogger": "Write `from core.loggers import TensorBoardLogger`.",
        "DDPStrategy": "Write `from core.strategies import DDPStrategy`.",
    },
    "core.callbacks": {
        "TQDMProgressBar": "Write `from core.callbacks import ProgressBar`.",
        "RichModelSummary": "Write `from core.callbacks import ModelSummary`.",
        "EMAWeightAveraging": "Write `from core.callbacks import EMA`.",
    },
}
"""By package and name."""
