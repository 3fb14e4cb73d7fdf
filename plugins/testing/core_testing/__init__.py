"""The conformance kit: subclass one of these in a test file, name your alias, and run pytest.

    from core_testing import StrategyConformance


    class TestAcme(StrategyConformance):
        alias = "acme"

Everything runs on real processes, without a network. A name is imported when it is first used, so
that the commands `core check` and `core new-plugin` don't wait for torch.
"""

from __future__ import annotations

import pkgutil
import sys
from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports
from core_testing._version import __version__

if TYPE_CHECKING:
    from core_testing.accelerator import AcceleratorConformance
    from core_testing.checkpoint_io import CheckpointIOConformance
    from core_testing.checkpoint_reader import CheckpointReaderConformance
    from core_testing.click_command import CommandConformance
    from core_testing.cluster_environment import ClusterEnvironmentConformance
    from core_testing.conformance import Conformance
    from core_testing.launcher import LauncherConformance
    from core_testing.logger import LoggerConformance
    from core_testing.one_process import in_one_process
    from core_testing.precision import PrecisionConformance
    from core_testing.ranks import Backend, Rank
    from core_testing.report import CaseResult, ConformanceReport
    from core_testing.strategy import (
        ONE_PROCESS,
        PARALLEL,
        DifferingConformance,
        DifferingSmoke,
        Differs,
        StrategyConformance,
        StrategySmoke,
    )

__all__ = [
    "ONE_PROCESS",
    "PARALLEL",
    "AcceleratorConformance",
    "Backend",
    "CaseResult",
    "CheckpointIOConformance",
    "CheckpointReaderConformance",
    "ClusterEnvironmentConformance",
    "CommandConformance",
    "Conformance",
    "ConformanceReport",
    "DifferingConformance",
    "DifferingSmoke",
    "Differs",
    "LauncherConformance",
    "LoggerConformance",
    "PrecisionConformance",
    "Rank",
    "StrategyConformance",
    "StrategySmoke",
    "__version__",
    "in_one_process",
]

# Where pytest runs, the asserts of the suites say what they have compared.
if "pytest" in sys.modules:
    import pytest

    _names = [
        module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")
    ]
    pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _names))

__getattr__, __dir__ = lazy_exports(__name__)
