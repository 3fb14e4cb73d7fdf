"""hivemind's classes, where their behavior isn't what a training run can live with. Imports
hivemind.
"""

from core_hivemind.averaging.children import Node
from core_hivemind.averaging.gradients import Gradients
from core_hivemind.averaging.optimizer import SwarmOptimizer
from core_hivemind.averaging.progress import SwarmProgress
from core_hivemind.averaging.state import State, state_prefix

__all__ = ["Gradients", "Node", "State", "SwarmOptimizer", "SwarmProgress", "state_prefix"]
