"""Colossal-AI's Booster for `core`: `Trainer(strategy="colossalai", devices=4)`."""

from core_colossalai._version import __version__
from core_colossalai.native_files import ColossalAICheckpointIO
from core_colossalai.options import ColossalAIOptions
from core_colossalai.strategy import ColossalAIStrategy

__all__ = ["ColossalAICheckpointIO", "ColossalAIOptions", "ColossalAIStrategy", "__version__"]
