"""The conformance suites of core-ray. Imported by `core check` and the tests only: it needs
pytest.
"""

from core_testing import ClusterEnvironmentConformance, LauncherConformance


class TestRay(LauncherConformance):
    """Two ranks on a local cluster, which each launch starts and ends."""

    alias = "ray"
    options = {"init_options": {"object_store_memory": 100 * 2**20}}
    heavy_modules = ("ray",)
    known_failures = {
        "test_a_killed_rank_is_named": "Ray tells that a process is gone, and not by which signal"
    }


class TestRayTrain(ClusterEnvironmentConformance):
    """The second of two workers on each of two nodes."""

    alias = "ray_train"
    heavy_modules = ("ray",)
    variables = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "MASTER_ADDR": "node-0",
        "MASTER_PORT": "29500",
        "ACCELERATE_TORCH_DEVICE": "cpu",
    }
    expected = {
        "world_size": 4,
        "global_rank": 3,
        "local_rank": 1,
        "node_rank": 1,
        "main_address": "node-0",
        "main_port": 29500,
    }
    devices = (2, 2)
    malformed = "WORLD_SIZE"
