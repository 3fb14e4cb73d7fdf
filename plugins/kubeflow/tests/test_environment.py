"""What the environment says, from variables as Kubeflow sets them."""

import pytest

from core.cluster import TorchElasticEnvironment
from core.contract import Absent, ConfigurationError, Found
from core_kubeflow import KubeflowEnvironment

TRAINJOB = {
    "PET_NNODES": "3",
    "PET_NPROC_PER_NODE": "2",
    "PET_NODE_RANK": "2",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29500",
}
# Kubeflow's first operator, since its release 1.7.
PYTORCHJOB = {
    **TRAINJOB,
    "PET_NPROC_PER_NODE": "auto",
    "MASTER_ADDR": "job-node-0-0.job",
    "MASTER_PORT": "29500",
    "WORLD_SIZE": "3",
    "RANK": "2",
}


@pytest.mark.parametrize("variables", [TRAINJOB, PYTORCHJOB])
def test_a_pod_is_a_node_whose_processes_the_launcher_makes(monkeypatch, variables):
    assert isinstance(KubeflowEnvironment.detect(), Absent)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert KubeflowEnvironment.detect() == Found(3, priority=50)
    assert isinstance(TorchElasticEnvironment.detect(), Absent), "that comes first, where it is"
    environment = KubeflowEnvironment()
    assert not environment.creates_processes
    assert environment.num_nodes() == 3
    assert (environment.main_address, environment.main_port) == ("job-node-0-0.job", 29500)
    assert (environment.world_size(), environment.global_rank()) == (3, 2)
    assert (environment.local_rank(), environment.node_rank()) == (0, 2)
    environment.validate(num_devices=8, num_nodes=3)
    with pytest.raises(
        ConfigurationError, match=r"Kubeflow started 3 pods \(PET_NNODES\), but num_nodes=1"
    ):
        environment.validate(num_devices=1, num_nodes=1)
    monkeypatch.setenv("CORE_GLOBAL_RANK", "5")
    assert environment.global_rank() == 5, "as its launcher has announced"
