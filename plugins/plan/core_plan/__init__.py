"""Which strategy a training program fits under, and what it does under each: `core plan` and `core compare`."""

from core_plan._version import __version__

__all__ = ["__version__"]
