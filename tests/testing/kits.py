"""A suite for every mutant, and for the right strategy; collected in a process of its own, by `run_mutants.py`.

Not named `test_...`: nearly all of it must fail.
"""

from averaging import AveragingStrategy
from mutants import MUTANTS

from core import testing
from core.registry import REGISTRIES

SUITES = {
    "strategy": testing.StrategyConformance,
    "accelerator": testing.AcceleratorConformance,
    "precision": testing.PrecisionConformance,
    "checkpoint io": testing.CheckpointIOConformance,
    "cluster environment": testing.ClusterEnvironmentConformance,
    "launcher": testing.LauncherConformance,
    "logger": testing.LoggerConformance,
}

for _mutant in MUTANTS:
    REGISTRIES[_mutant.kind].register(_mutant.alias, _mutant.plugin, _mutant.fault)
    _attributes = {"alias": _mutant.alias, "timeout_s": 20, **_mutant.attributes}
    globals()[f"Test{_mutant.name}"] = type(f"Test{_mutant.name}", (SUITES[_mutant.kind],), _attributes)

REGISTRIES["strategy"].register("averaging", AveragingStrategy)


class TestAveraging(testing.StrategyConformance):
    alias = "averaging"
