"""A suite for every mutant, and for the right strategy; collected in a process of its own, by
`run_mutants.py`.

Not named `test_...`: nearly all of it must fail.
"""

import os

from averaging import AveragingStrategy
from compressing import CompressingStrategy, LocalStrategy
from mutants import MUTANTS
from mutants_differing import NOW_AND_THEN, SIGNS

import core_testing
from core.registry import REGISTRIES

SUITES = {
    "strategy": core_testing.StrategyConformance,
    "differing strategy": core_testing.DifferingConformance,
    "accelerator": core_testing.AcceleratorConformance,
    "precision": core_testing.PrecisionConformance,
    "checkpoint io": core_testing.CheckpointIOConformance,
    "checkpoint reader": core_testing.CheckpointReaderConformance,
    "cluster environment": core_testing.ClusterEnvironmentConformance,
    "launcher": core_testing.LauncherConformance,
    "logger": core_testing.LoggerConformance,
    "command": core_testing.CommandConformance,
}


def is_in_process(mutant):
    """True if its ranks can be threads of this process: its tests aren't about processes."""
    tests = [
        getattr(SUITES[mutant.kind], name.partition("[")[0])
        for name in (mutant.test, mutant.passes)
        if name
    ]
    return mutant.registry == "strategy" and not any(
        hasattr(test, "of_processes") for test in tests
    )


for _mutant in MUTANTS:
    REGISTRIES[_mutant.registry].register(_mutant.alias, _mutant.plugin, _mutant.fault)
    _attributes = {
        "alias": _mutant.alias,
        "timeout_s": 20,
        "in_process": is_in_process(_mutant),
        **_mutant.attributes,
    }
    globals()[f"Test{_mutant.name}"] = type(
        f"Test{_mutant.name}", (SUITES[_mutant.kind],), _attributes
    )

REGISTRIES["strategy"].register("averaging", AveragingStrategy)


_PROCESS = os.getpid()


class TestAveraging(core_testing.StrategyConformance):
    """The right one, which is never made in pytest's own process: what making it changes would be
    there ever after.
    """

    alias = "averaging"

    def make(self, **options):
        assert os.getpid() != _PROCESS
        return super().make(**options)


REGISTRIES["strategy"].register("compressing", CompressingStrategy)
REGISTRIES["strategy"].register("local", LocalStrategy)


class TestCompressing(core_testing.DifferingConformance):
    alias = "compressing"
    differs = SIGNS


class TestLocal(core_testing.DifferingConformance):
    alias = "local"
    differs = NOW_AND_THEN
