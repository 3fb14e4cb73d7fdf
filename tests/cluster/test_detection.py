"""Which environment is chosen, and what it says, from variables as the schedulers set them."""

import os
import socket
import stat

import pytest

from core.cluster import (
    LocalEnvironment,
    LSFEnvironment,
    MPIEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from core.cluster.slurm import first_host
from core.contract import ConfigurationError, Found

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "job7",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NAME": "train",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[003,007]",
    "SLURM_JOB_NODELIST": "gpu[003,007]",
}
# In a batch script before srun: the batch step has ranks too, but no step number of its own.
SBATCH = {
    name: SRUN[name] for name in ("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_NTASKS", "SLURM_NNODES")
} | {
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "1469841409",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
JSRUN = {
    "LSB_JOBID": "1234",
    "JSM_NAMESPACE_RANK": "1",
    "JSM_NAMESPACE_SIZE": "2",
    "JSM_NAMESPACE_LOCAL_RANK": "0",
    "LSB_DJOB_RANKFILE": "/nowhere",
}


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch):
    prefixes = (
        "SLURM",
        "OMPI",
        "PMI",
        "MPI_",
        "MV2",
        "LSB_",
        "JSM_",
        "TORCHELASTIC",
        "CORE_",
    )
    names = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "NODE_RANK",
        "MASTER_ADDR",
    )
    for name in list(os.environ):
        if name.startswith(prefixes) or name in (*names, "MASTER_PORT", "LOCAL_SIZE", "CROSS_RANK"):
            monkeypatch.delenv(name)


@pytest.fixture
def given(monkeypatch):
    def set_all(variables, **more):
        for name, value in (variables | more).items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, LocalEnvironment),
        (TORCHRUN, TorchElasticEnvironment),
        (SRUN, SLURMEnvironment),
        (OPEN_MPI, MPIEnvironment),
        (MPICH, MPIEnvironment),
        (JSRUN, LSFEnvironment),
        (SRUN | TORCHRUN, TorchElasticEnvironment),
        # mpirun starts its daemons with srun on the other nodes of a job.
        (SRUN | OPEN_MPI, MPIEnvironment),
        # jsrun sets Open MPI's variables too.
        (JSRUN | OPEN_MPI, LSFEnvironment),
        # srun --mpi=pmi2 sets PMI's rank, but no local one.
        (SRUN | {"PMI_RANK": "3", "PMI_SIZE": "4"}, SLURMEnvironment),
        (SBATCH, LocalEnvironment),
        (
            SRUN | {"SLURM_JOB_NAME": "bash", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"},
            LocalEnvironment,
        ),
        (SRUN | {"SLURM_PTY_PORT": "40000"}, LocalEnvironment),
        # salloc names the job "interactive", and srun inside starts ordinary tasks.
        (SRUN | {"SLURM_JOB_NAME": "interactive"}, SLURMEnvironment),
        # All of torch's own variables, from a launcher that we don't know.
        ({name: TORCHRUN[name] for name in list(TORCHRUN)[:7]}, TorchElasticEnvironment),
        ({"RANK": "0", "WORLD_SIZE": "2"}, LocalEnvironment),
    ],
)
def test_the_most_specific_environment_wins(given, variables, expected):
    all = (
        LocalEnvironment,
        TorchElasticEnvironment,
        SLURMEnvironment,
        MPIEnvironment,
        LSFEnvironment,
    )

    def chosen():
        found = {kind: detection for kind in all if isinstance(detection := kind.detect(), Found)}
        return max(found, key=lambda kind: found[kind].priority)

    given(variables)
    assert chosen() is expected


def described(environment):
    return (
        environment.main_address,
        environment.main_port,
        environment.world_size(),
        environment.global_rank(),
        environment.local_rank(),
        environment.node_rank(),
    )


def test_torchrun(given):
    given(TORCHRUN)
    environment = TorchElasticEnvironment()
    assert described(environment) == ("10.0.0.1", 29400, 4, 3, 1, 1)
    assert (environment.restart_count, environment.store_is_hosted, environment.job_id()) == (
        2,
        True,
        "job7",
    )
    environment.validate(num_devices=2, num_nodes=2)
    with pytest.raises(ConfigurationError) as caught:
        environment.validate(num_devices=1, num_nodes=2)
    assert str(caught.value) == (
        "torchrun started 4 processes (WORLD_SIZE=4), but devices=1 and num_nodes=2 ask for 2. "
        "Pass devices=2 and num_nodes=2, or start it with --nproc-per-node 1 --nnodes 2."
    )


@pytest.mark.parametrize("left_out", [(), ("LOCAL_WORLD_SIZE",)])
def test_torchrun_that_started_more_on_a_node_than_devices(given, left_out):
    given({name: value for name, value in TORCHRUN.items() if name not in left_out})
    with pytest.raises(ConfigurationError) as caught:
        TorchElasticEnvironment().validate(num_devices=1, num_nodes=4)
    assert str(caught.value).startswith(
        "torchrun started 2 processes on this node, but devices=1 and num_nodes=4 have room for 1 "
        "on each. Pass "
    )


def test_launchers_that_say_otherwise_what_a_node_is(given):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    given({name: TORCHRUN[name] for name in names}, LOCAL_SIZE="2", CROSS_RANK="1")
    environment = TorchElasticEnvironment()
    assert described(environment) == ("10.0.0.1", 29400, 4, 3, 1, 1)
    with pytest.raises(ConfigurationError) as caught:
        environment.validate(num_devices=1, num_nodes=2)
    assert str(caught.value) == (
        "The launcher started 4 processes (WORLD_SIZE=4), but devices=1 and num_nodes=2 ask for 2. "
        "Pass devices=2 and num_nodes=2, or let it start 2."
    )


def test_slurm(given):
    given(SRUN)
    environment = SLURMEnvironment()
    address, port, *ranks = described(environment)
    assert (address, ranks) == ("gpu003", [4, 3, 1, 1])
    assert 15_000 <= port < 30_000
    assert (environment.job_id(), environment.restart_count) == ("4711", 0)
    environment.validate(num_devices=2, num_nodes=2)
    with pytest.raises(ConfigurationError) as caught:
        environment.validate(num_devices=8, num_nodes=2)
    assert str(caught.value) == (
        "srun started 4 processes (SLURM_NTASKS=4), but devices=8 and num_nodes=2 ask for 16. "
        "Pass devices=2 and num_nodes=2, or ask SLURM for --nodes=2 --ntasks-per-node=8."
    )
    with pytest.raises(
        ConfigurationError,
        match=r"srun runs this step on 2 nodes \(SLURM_NNODES=2\), but num_nodes=1",
    ):
        environment.validate(num_devices=4, num_nodes=1)


def test_two_steps_of_one_slurm_job_meet_at_different_ports(given):
    given(SRUN, SLURM_STEP_NUM_NODES="1")
    first = SLURMEnvironment()
    port = first.main_port
    assert first.main_address == "127.0.0.1", "on one node it needs no host name"
    given(SRUN, SLURM_STEP_ID="1")
    assert SLURMEnvironment().main_port != port


@pytest.mark.parametrize("kind", [LocalEnvironment, SLURMEnvironment, MPIEnvironment])
def test_the_users_meeting_point_is_honored(given, kind):
    given(SRUN | OPEN_MPI, MASTER_ADDR="login", MASTER_PORT="12345")
    assert (kind().main_address, kind().main_port) == ("login", 12345)


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("node7", "node7"),
        ("gpu[003-005,010]-ib,login", "gpu003-ib"),
        ("rack[1-2]node[08-09]", "rack1node08"),
    ],
)
def test_first_host_of_a_nodelist(nodelist, host):
    assert first_host(nodelist) == host
    with pytest.raises(
        ConfigurationError,
        match=r"should be a list of hosts such as 'node\[01-04\]', but it is 'n\[1",
    ):
        first_host("n[1")


@pytest.mark.parametrize(("code", "answer"), [(0, True), (1, False)])
def test_slurm_requeues_through_scontrol(given, tmp_path, code, answer):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" > "{tmp_path}/asked"\nexit {code}\n')
    scontrol.chmod(scontrol.stat().st_mode | stat.S_IXUSR)
    given(SRUN, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert SLURMEnvironment().requeue() is answer
    assert (tmp_path / "asked").read_text() == "requeue 4711\n"
    given(SRUN, SLURM_ARRAY_JOB_ID="4700", SLURM_ARRAY_TASK_ID="5")
    SLURMEnvironment().requeue()
    assert (tmp_path / "asked").read_text() == "requeue 4700_5\n"
    given(SRUN, PATH=str(tmp_path / "without"))
    assert SLURMEnvironment().requeue() is False


@pytest.mark.parametrize("variables", [OPEN_MPI, MPICH])
def test_mpi_on_one_node(given, variables):
    given(variables, MASTER_PORT="20000")
    environment = MPIEnvironment()
    assert described(environment) == ("127.0.0.1", 20000, 2, 1, 1, 0)
    environment.validate(num_devices=2, num_nodes=1)
    with pytest.raises(
        ConfigurationError, match=r"mpirun started 2 processes .* ask for 1\. Pass devices=2"
    ):
        environment.validate(num_devices=1, num_nodes=1)
    with pytest.raises(
        ConfigurationError,
        match=r"mpirun started 2 processes on this node, but devices=1 and num_n",
    ):
        environment.validate(num_devices=1, num_nodes=2)


def test_all_ranks_of_open_mpi_derive_the_same_port(given):
    given(OPEN_MPI)
    first = MPIEnvironment().main_port
    given(OPEN_MPI, OMPI_COMM_WORLD_RANK="0")
    assert MPIEnvironment().main_port == first


def test_mpi_over_several_nodes_has_to_be_told_where(given, monkeypatch):
    given(OPEN_MPI, OMPI_COMM_WORLD_SIZE="4")
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", None)
    with pytest.raises(
        ConfigurationError, match=r"Set MASTER_ADDR \(host of rank 0\) and MASTER_PORT .* mpi4py"
    ):
        _ = MPIEnvironment().main_address


def test_ranks_that_are_dealt_out_in_turn_are_refused(given):
    given(OPEN_MPI, OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_LOCAL_RANK="0")
    with pytest.raises(ConfigurationError, match="use mpirun --map-by slot"):
        MPIEnvironment().validate(num_devices=2, num_nodes=2)


def test_lsf(given, tmp_path):
    given(JSRUN)
    with pytest.raises(
        ConfigurationError, match="LSB_DJOB_RANKFILE names '/nowhere', which can't be read"
    ):
        _ = LSFEnvironment().main_address
    own = socket.gethostname()
    rankfile = tmp_path / "rankfile"
    rankfile.write_text(f"batch1\nc01\nc01\n{own}.cluster\n{own}.cluster\n")
    given(JSRUN, LSB_DJOB_RANKFILE=str(rankfile))
    environment = LSFEnvironment()
    address, port, *ranks = described(environment)
    assert (address, ranks) == ("c01", [2, 1, 0, 1])
    assert 15_000 <= port < 30_000
    environment.validate(num_devices=1, num_nodes=2)
    with pytest.raises(ConfigurationError, match="jsrun started 2 processes"):
        environment.validate(num_devices=2, num_nodes=2)
    rankfile.write_text("batch1\nc01\n")
    with pytest.raises(ConfigurationError, match=f"lists c01, but this host is '{own}'"):
        environment.node_rank()


def test_local_takes_the_world_from_the_launcher_and_meets_it_at_one_port(monkeypatch):
    monkeypatch.setattr(LocalEnvironment, "_meeting_port", None)
    first, second = LocalEnvironment(), LocalEnvironment()
    assert first.main_address == "127.0.0.1"
    assert first.main_port == first.main_port != LocalEnvironment().main_port, (
        "one that is free now"
    )
    first.set_world(world_size=4, global_rank=3, local_rank=1, node_rank=1)
    assert second.main_port == first.main_port, (
        "processes that exist for the whole script know one port"
    )
    assert described(first)[2:] == (4, 3, 1, 1)
    assert not first.creates_processes


def test_several_nodes_by_hand(given):
    with pytest.raises(ConfigurationError) as caught:
        LocalEnvironment().validate(num_devices=2, num_nodes=2)
    assert "not set: MASTER_ADDR, MASTER_PORT, NODE_RANK" in str(caught.value)
    given({"MASTER_ADDR": "a", "MASTER_PORT": "1234", "NODE_RANK": "1"})
    LocalEnvironment().validate(num_devices=2, num_nodes=2)
    assert LocalEnvironment().node_rank() == 1
    given({"NODE_RANK": "2"})
    with pytest.raises(ConfigurationError, match=r"NODE_RANK=2, but num_nodes=2.*expected 0 to 1"):
        LocalEnvironment().validate(num_devices=2, num_nodes=2)


def test_a_variable_that_is_empty_is_named(given):
    given(TORCHRUN, RANK="")
    with pytest.raises(
        ConfigurationError, match=r"RANK is needed here and is not set\. torchrun sets it"
    ):
        TorchElasticEnvironment().global_rank()


@pytest.mark.parametrize("port", ["70000", "http"])
def test_a_malformed_port_is_named(given, port):
    given({"MASTER_PORT": port})
    with pytest.raises(ConfigurationError, match="MASTER_PORT"):
        _ = LocalEnvironment().main_port
