"""Callbacks for runs that go on: bad batches are skipped, replicas and ranks compared, and lost time is counted.

from core.callbacks import Goodput, SpikeGuard, StragglerDetection, VerifyReplicas
"""

from core_resilience._version import __version__
from core_resilience.goodput import Goodput
from core_resilience.spike_guard import SpikeError, SpikeGuard
from core_resilience.straggler import Straggler
from core_resilience.straggler_detection import StragglerDetection
from core_resilience.verify_replicas import Difference, ReplicasDifferError, VerifyReplicas

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
]
