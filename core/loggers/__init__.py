"""The CSV logger, and what loggers are made of; the loggers of installed plugins can be imported
from here too.
"""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.contract.logger import Logger
    from core.loggers.csv import CSVLogger
    from core.loggers.run_folder import RunFolderLogger, flatten_names, to_scalar

__all__ = ["CSVLogger", "Logger", "RunFolderLogger", "flatten_names", "to_scalar"]

__getattr__, __dir__ = lazy_exports(__name__, kind="logger")
