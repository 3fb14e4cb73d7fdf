"""The conformance kit: subclass one of these in a test file, name your alias, and run pytest.

    from core.testing import StrategyConformance


    class TestAcme(StrategyConformance):
        alias = "acme"

It comes with `pip install core[testing]`. Everything runs on real processes, without a network.
"""

import pkgutil

try:
    import pytest
except ModuleNotFoundError as cause:
    raise ImportError("core.testing needs pytest: pip install 'core[testing]'") from cause

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

from core.testing.accelerator import AcceleratorConformance  # noqa: E402
from core.testing.checkpoint_io import CheckpointIOConformance  # noqa: E402
from core.testing.cluster_environment import ClusterEnvironmentConformance  # noqa: E402
from core.testing.conformance import Conformance  # noqa: E402
from core.testing.launcher import LauncherConformance  # noqa: E402
from core.testing.logger import LoggerConformance  # noqa: E402
from core.testing.precision import PrecisionConformance  # noqa: E402
from core.testing.ranks import Backend, Rank  # noqa: E402
from core.testing.report import ConformanceReport, Row  # noqa: E402
from core.testing.strategy import StrategyConformance, StrategySmoke  # noqa: E402

__all__ = [
    "AcceleratorConformance",
    "Backend",
    "CheckpointIOConformance",
    "ClusterEnvironmentConformance",
    "Conformance",
    "ConformanceReport",
    "LauncherConformance",
    "LoggerConformance",
    "PrecisionConformance",
    "Rank",
    "Row",
    "StrategyConformance",
    "StrategySmoke",
]
