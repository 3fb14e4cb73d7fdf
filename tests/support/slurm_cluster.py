"""A small SLURM cluster on this machine, for the tests that say so:
`from slurm_cluster import slurm`.
"""

import contextlib
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from core_testing.waiting import wait_until

# Both nodes are this machine; no control groups, no accounting.
SLURM_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
ReturnToService=2
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/slurmd-%n
StateSaveLocation={folder}/slurmctld
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SwitchType=switch/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
JobRequeue=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=1000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=debug Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


@pytest.fixture(scope="session")
def slurm():
    """A running cluster of two nodes on this machine; its value is the variables that srun
    needs.
    """
    programs = ("srun", "slurmctld", "slurmd", "munged", "mungekey")
    if missing := [name for name in programs if shutil.which(name) is None]:
        pytest.skip(f"{missing[0]} is not installed: tests/cluster/install.sh")
    if os.geteuid() != 0:
        pytest.skip("the daemons of SLURM need root")
    # A short path, since sockets are in it; munged wants every folder above to be root's own.
    folder = Path("/run") / f"core-test-slurm-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        folder.mkdir(mode=0o755)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        start_munge(folder, stack)
        yield start_slurm(folder, stack)


def start_munge(folder, stack):
    key = folder / "munge.key"
    subprocess.run(["mungekey", "--create", f"--keyfile={key}"], check=True)
    files = {
        "key-file": key,
        "socket": "munge.socket",
        "pid-file": "munge.pid",
        "log-file": "munge.log",
    }
    options = [f"--{option}={folder / name}" for option, name in files.items()] + [
        f"--seed-file={folder}/munge.seed"
    ]
    start_daemon(stack, "munged", "--foreground", "--force", *options)
    wait_until(lambda: (folder / "munge.socket").exists(), "munged")


def start_slurm(folder, stack):
    configuration = folder / "slurm.conf"
    configuration.write_text(
        SLURM_CONF.format(
            host=socket.gethostname().split(".")[0],
            folder=folder,
            ports=[free_port() for _ in range(3)],
        )
    )
    for name in ("slurmctld", "slurmd-n1", "slurmd-n2"):
        (folder / name).mkdir()
    variables = {"SLURM_CONF": str(configuration)}
    start_daemon(stack, "slurmctld", "-D", "-f", configuration)
    for node in ("n1", "n2"):
        start_daemon(stack, "slurmd", "-D", "-f", configuration, "-N", node)
    count_idle = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
    wait_until(
        lambda: (
            subprocess.run(
                count_idle, env=os.environ | variables, capture_output=True, text=True
            ).stdout.strip()
            == "2"
        ),
        "two idle SLURM nodes",
    )
    stack.callback(end_jobs, os.environ | variables)
    return variables


def end_jobs(variables):
    """End what still runs, such as a job that a test has seen go on: it would outlive the
    daemons.
    """

    def is_empty():
        done = subprocess.run(
            ["squeue", "--noheader"], env=variables, capture_output=True, text=True, check=True
        )
        return not done.stdout.strip()

    subprocess.run(["scancel", "--user=root"], env=variables, check=True)
    wait_until(is_empty, "no job of SLURM is left")


def start_daemon(stack, *command):
    process = subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
