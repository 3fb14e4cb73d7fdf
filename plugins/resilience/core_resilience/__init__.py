"""Callbacks for runs that go on: bad batches are skipped, replicas compared, and lost time is counted.

from core.callbacks import Goodput, SpikeGuard, VerifyReplicas
"""

from core_resilience._version import __version__
from core_resilience.goodput import Goodput
from core_resilience.spike_guard import SpikeError, SpikeGuard
from core_resilience.verify_replicas import Difference, ReplicasDifferError, VerifyReplicas

__all__ = [
    "Difference",
    "Goodput",
    "ReplicasDifferError",
    "SpikeError",
    "SpikeGuard",
    "VerifyReplicas",
    "__version__",
]
