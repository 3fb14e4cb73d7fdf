"""The whole suite of a strategy."""

from __future__ import annotations

from core.testing.cases import Case
from core.testing.strategy.checkpoints import CheckpointTests
from core.testing.strategy.collectives import CollectiveTests
from core.testing.strategy.data import DataTests
from core.testing.strategy.failures import FailureTests
from core.testing.strategy.lifecycle import LifecycleTests
from core.testing.strategy.script import ScriptTests
from core.testing.strategy.training import TrainingTests
from core.testing.strategy.unity import UnityTests
from core.testing.training import assert_equal_runs, reference, train


class StrategyConformance(
    TrainingTests,
    UnityTests,
    LifecycleTests,
    CollectiveTests,
    DataTests,
    CheckpointTests,
    FailureTests,
    ScriptTests,
):
    """All that a strategy must prove. Subclass it, and set `alias`.

    The attributes of `core.testing.strategy.base.StrategySuite` and `core.testing.Conformance` say what is tested, and
    how closely. A test of a capability that the strategy doesn't declare is skipped, with the capability's name.
    """


class StrategySmoke(UnityTests):
    """For an alias that only sets options of a strategy which goes through `StrategyConformance` under another one."""

    def test_trains(self) -> None:
        """It trains as one device does."""
        case = Case("smoke", dtype=self.dtype)
        assert_equal_runs(self.run(train, case)[0], reference(case, self.accelerator, self.shares), self.tolerance)
