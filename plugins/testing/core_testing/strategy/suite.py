"""The whole suite of a strategy."""

from __future__ import annotations

from core_testing.cases import Case
from core_testing.strategy.checkpoints import CheckpointTests
from core_testing.strategy.collectives import CollectiveTests
from core_testing.strategy.data import DataTests
from core_testing.strategy.failures import FailureTests
from core_testing.strategy.lifecycle import LifecycleTests
from core_testing.strategy.script import ScriptTests
from core_testing.strategy.shapes import ShapeTests
from core_testing.strategy.streams import StreamTests
from core_testing.strategy.training import TrainingTests
from core_testing.strategy.uneven import UnevenTests
from core_testing.strategy.unity import UnityTests
from core_testing.strategy.weights import WeightTests
from core_testing.training import reference, train


class StrategyConformance(
    TrainingTests,
    ShapeTests,
    WeightTests,
    UnityTests,
    LifecycleTests,
    CollectiveTests,
    DataTests,
    UnevenTests,
    CheckpointTests,
    StreamTests,
    FailureTests,
    ScriptTests,
):
    """All that a strategy must prove. Subclass it, and set `alias`.

    The attributes of `core_testing.strategy.base.StrategySuite` and `core_testing.Conformance` say
    what is tested, and how closely. A test of a capability that the strategy doesn't declare is
    skipped, with the capability's name.
    """


class StrategySmoke(ShapeTests, UnityTests):
    """The short suite of an alias that only sets options of a strategy that passes
    `StrategyConformance` otherwise.
    """

    def test_trains(self) -> None:
        """It trains as one device does."""
        case = self.adapted(Case("smoke"))
        self.assert_like_one_device(
            self.run(train, case)[0], reference(case, self.reference_accelerator, self.shares)
        )
