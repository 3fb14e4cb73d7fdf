"""The command `core report`: a page about a run, or about several side by side."""

from core_report._version import __version__
from core_report.command import report

__all__ = ["__version__", "report"]
