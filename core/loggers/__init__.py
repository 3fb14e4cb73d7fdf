"""Loggers that need no package of core's own; those of installed plugins can be imported from here too."""

from typing import TYPE_CHECKING, Any

from core.contract.logger import Logger

if TYPE_CHECKING:
    from core.loggers.csv import CSVLogger
    from core.loggers.mlflow import MLFlowLogger
    from core.loggers.tensorboard import TensorBoardLogger
    from core.loggers.wandb import WandbLogger

__all__ = ["CSVLogger", "Logger", "MLFlowLogger", "TensorBoardLogger", "WandbLogger"]

_MODULES = {
    "CSVLogger": "core.loggers.csv",
    "MLFlowLogger": "core.loggers.mlflow",
    "TensorBoardLogger": "core.loggers.tensorboard",
    "WandbLogger": "core.loggers.wandb",
}


def __getattr__(name: str) -> Any:
    from core.registry.lazy_exports import lazy_export

    return lazy_export(name, kind="logger", package=__name__, modules=_MODULES)


def __dir__() -> list[str]:
    return __all__
