"""Local SGD for `core`."""

from local_sgd.strategy import LocalSGDStrategy

__all__ = ["LocalSGDStrategy"]
