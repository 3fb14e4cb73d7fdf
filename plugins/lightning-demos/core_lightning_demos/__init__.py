"""The models and data sets of Lightning's examples, under the names that its module `demos` has."""

from core_lightning_demos._version import __version__

__all__ = ["__version__"]
