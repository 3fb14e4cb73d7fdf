"""Weights & Biases as a logger of `core`."""

from core_wandb._version import __version__
from core_wandb.logger import WandbLogger

__all__ = ["WandbLogger", "__version__"]
