"""Loggers that need no package of core's own; those of installed plugins can be imported from here too."""

from typing import TYPE_CHECKING, Any

from core.contract.logger import Logger

if TYPE_CHECKING:
    from core.loggers.csv import CSVLogger
    from core.loggers.tensorboard import TensorBoardLogger

__all__ = ["CSVLogger", "Logger", "TensorBoardLogger"]

_MODULES = {
    "CSVLogger": "core.loggers.csv",
    "TensorBoardLogger": "core.loggers.tensorboard",
}


def __getattr__(name: str) -> Any:
    from core.registry.lazy_exports import lazy_export

    return lazy_export(name, kind="logger", package=__name__, modules=_MODULES)


def __dir__() -> list[str]:
    return __all__
