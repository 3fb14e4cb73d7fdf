"""A command line made of the types of a module, a data module and the Trainer, by jsonargparse.

from core import cli_for

cli_for(Net, Data)
"""

from core_jsonargparse._version import __version__
from core_jsonargparse.cli_for import ConfiguredRun, cli_for

__all__ = ["ConfiguredRun", "__version__", "cli_for"]
