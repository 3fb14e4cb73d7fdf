"""The conformance suite of core-kubeflow. Imported by `core check` and the tests only: it needs
pytest.
"""

from core_testing import ClusterEnvironmentConformance


class TestKubeflow(ClusterEnvironmentConformance):
    """The second of a TrainJob's two pods."""

    alias = "kubeflow"
    variables = {
        **{"PET_NNODES": "2", "PET_NPROC_PER_NODE": "4", "PET_NODE_RANK": "1"},
        **{"PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29500"},
    }
    expected = {
        **{"world_size": 2, "global_rank": 1, "local_rank": 0, "node_rank": 1},
        **{"main_address": "job-node-0-0.job", "main_port": 29500},
    }
    devices = (4, 2)
    malformed = "PET_NODE_RANK"
