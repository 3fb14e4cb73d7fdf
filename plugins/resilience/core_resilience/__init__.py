"""Runs that go on: bad batches are skipped, lost ranks replaced, replicas compared, and lost time
is counted.

from core.callbacks import Goodput, SpikeGuard, StragglerDetection, VerifyReplicas
"""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports
from core_resilience._version import __version__

if TYPE_CHECKING:
    from core.contract import Difference, ReplicasDifferError
    from core_resilience.goodput import Goodput
    from core_resilience.microbatch import microbatch_size
    from core_resilience.spike_guard import SpikeError, SpikeGuard
    from core_resilience.straggler import Straggler
    from core_resilience.straggler_detection import StragglerDetection
    from core_resilience.verify_replicas import VerifyReplicas

__all__ = [
    "Difference",
    "Goodput",
    "ReplicasDifferError",
    "SpikeError",
    "SpikeGuard",
    "Straggler",
    "StragglerDetection",
    "VerifyReplicas",
    "__version__",
    "microbatch_size",
]

__getattr__, __dir__ = lazy_exports(__name__)
