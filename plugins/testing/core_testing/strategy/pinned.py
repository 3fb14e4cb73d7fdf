"""The capabilities that most strategies are pinned to, as `expected_capabilities`."""

from core import Capability

ONE_PROCESS = (
    Capability.MANUAL_OPTIMIZATION
    | Capability.SEVERAL_MODULES
    | Capability.SEVERAL_OPTIMIZERS
    | Capability.CLIP_BY_VALUE
    | Capability.INFERENCE_MODE
    | Capability.BIT_EXACT_RESUME
    | Capability.WEIGHTED_LOSSES
)
"""Those of a strategy of one process that leaves nothing out."""

PARALLEL = (
    ONE_PROCESS | Capability.COLLECTIVES | Capability.NO_SYNC | Capability.REPLICATED_PARAMETERS
)
"""Those of one replica in each process; a strategy without one of them takes it away,
`PARALLEL & ~Capability...`.
"""
