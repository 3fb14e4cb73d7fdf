"""The conformance suites of core-horovod. Imported by `core check` and the tests only: it needs
pytest.
"""

from core_testing import (
    PARALLEL,
    ClusterEnvironmentConformance,
    LauncherConformance,
    StrategyConformance,
    StrategySmoke,
)


class TestHorovod(StrategyConformance):
    """Two processes train as one device does."""

    alias = "horovod"
    timeout_s = 120
    heavy_modules = ("horovod",)
    expected_capabilities = PARALLEL


class TestCompressed(StrategySmoke):
    """Gradients travel in half precision."""

    alias = "horovod"
    options = {"compression": "fp16"}
    tolerance = 2e-2


class TestGrouped(StrategySmoke):
    """Gradients travel in two groups, and are divided before they are added up too."""

    alias = "horovod"
    options = {"groups": 2, "gradient_predivide_factor": 2.0}


class TestHorovodLauncher(LauncherConformance):
    """Horovod's own runner."""

    alias = "horovod"


class TestHorovodEnvironment(ClusterEnvironmentConformance):
    """The third of four ranks that horovodrun has put on two nodes."""

    alias = "horovod"
    variables = {
        "HOROVOD_RANK": "2",
        "HOROVOD_SIZE": "4",
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "40123",
        "MASTER_ADDR": "host-0",
    }
    expected = {
        "world_size": 4,
        "global_rank": 2,
        "local_rank": 0,
        "node_rank": 1,
        "main_address": "host-0",
        "main_port": 25123,
    }
    devices = (2, 2)
    malformed = "HOROVOD_RANK"
