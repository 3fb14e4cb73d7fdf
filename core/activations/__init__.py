"""Memory for activations: some are computed again in backward, or wait for it in the memory of the
CPU.
"""

from core.activations.activation_memory import ActivationMemory
from core.activations.saved_activations import save_activations

__all__ = ["ActivationMemory", "save_activations"]
