"""Ranks clip alone, and each rank's Adam sees its own gradients: meant to differ, by as much as is declared."""

from core import Capability
from core_testing import DifferingConformance, DifferingSmoke, Differs


class TestEveryStep(DifferingConformance):
    alias = "local_sgd"
    options = {"period": 1}
    differs = Differs("each rank's optimizer sees its own gradients, and not their mean", within=0.05)
    expected_capabilities = Capability.COLLECTIVES | Capability.INFERENCE_MODE | Capability.BIT_EXACT_RESUME


class TestNowAndThen(DifferingSmoke):
    alias = "local_sgd"
    options = {"period": 4}
    differs = Differs("ranks go their own ways between two averages", within=0.2, agrees_after=4)
