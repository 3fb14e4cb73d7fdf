"""SLURM's srun."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING

from core.cluster.variables import (
    all_set,
    check_world,
    derived_port,
    read_address,
    read_int,
    read_or_0,
    read_port,
    read_text,
)
from core.contract import Absent, ClusterEnvironment, ConfigurationError, Found

if TYPE_CHECKING:
    from core.contract.accelerator import Detection

_HINT = "srun sets it: start the script with srun, inside sbatch or salloc."
_SHELLS = frozenset({"interactive", "bash", "sh", "zsh", "fish", "tcsh", "ksh"})


class SLURMEnvironment(ClusterEnvironment):
    """A step that `srun` started, one task a rank.

    Variables:
        SLURM_STEP_NUM_TASKS, or SLURM_NTASKS: number of tasks in the step.
        SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID: ranks.
        SLURM_STEP_NODELIST, or SLURM_JOB_NODELIST, SLURM_NODELIST: host names; rank 0 is on the
            first.
        SLURM_STEP_NUM_NODES, or SLURM_NNODES: number of nodes.
        SLURM_JOB_ID, SLURM_STEP_ID: name of the job and step; the port is derived from them.
        SLURM_JOB_NAME, SLURM_PTY_PORT: mark an interactive shell, where the launcher makes the
            processes.
        SLURM_ARRAY_JOB_ID, SLURM_ARRAY_TASK_ID: what `requeue` names in a job array.
        SLURM_GPUS_PER_TASK, SLURM_TRES_PER_TASK, SLURM_GPU_BIND: set if each task sees only its own
            GPU.
        SLURM_RESTART_COUNT: how often the job was requeued.
        MASTER_ADDR, MASTER_PORT: optional; the user's choice of where the ranks meet.

    A script that runs in a batch job without srun is not in a step: there the launcher makes the
    processes, too.
    """

    def __init__(self, *, requeue_signal: signal.Signals | None = signal.SIGUSR1) -> None:
        """An environment for jobs of SLURM, which may announce a pre-emption by a signal.

        Args:
            requeue_signal: what `--signal` of sbatch names, as in `#SBATCH --signal=USR1@120`;
                SIGTERM for a cluster that pre-empts with it. A Trainer then saves, and asks for
                another run of the job. None for never.
        """
        self.requeue_signal = requeue_signal

    @classmethod
    def detect(cls) -> Detection:
        """Found if srun started this process as one task of a step that isn't an interactive
        shell.
        """
        if "SLURM_JOB_ID" not in os.environ:
            return Absent("SLURM_JOB_ID is not set")
        if not all_set("SLURM_STEP_ID", "SLURM_PROCID"):
            return Absent("inside a SLURM job, but not started by srun: SLURM_STEP_ID is not set")
        # `srun` with several tasks inside an interactive job is a step like any other.
        name = os.environ.get("SLURM_JOB_NAME", "")
        if "SLURM_PTY_PORT" in os.environ:
            return Absent("inside an interactive SLURM session (srun --pty)")
        if name in _SHELLS and _num_tasks() == 1:
            return Absent(f"inside an interactive SLURM session (SLURM_JOB_NAME={name})")
        return Found(_num_tasks(), priority=60)

    @property
    def main_address(self) -> str:
        """`MASTER_ADDR`, or the step's first host; this machine if the step has no other."""
        address = read_address()
        if not address and _num_nodes() == 1:
            return "127.0.0.1"
        return address or first_host(
            read_text("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST", hint=_HINT)
        )

    @property
    def main_port(self) -> int:
        """`MASTER_PORT`, or a port from 15000 to 29999 that follows from the job and its step."""
        chosen = read_port("Unset it, and the port follows from the job's number.")
        return chosen or derived_port(f"{self.job_id()}.{os.environ.get('SLURM_STEP_ID', '0')}")

    def world_size(self) -> int:
        """Number of tasks in the step."""
        return _num_tasks()

    def global_rank(self) -> int:
        """`SLURM_PROCID`."""
        return read_int("SLURM_PROCID", hint=_HINT)

    def local_rank(self) -> int:
        """`SLURM_LOCALID`."""
        return read_int("SLURM_LOCALID", hint=_HINT)

    def node_rank(self) -> int:
        """`SLURM_NODEID`."""
        return read_int("SLURM_NODEID", hint=_HINT)

    @property
    def restart_count(self) -> int:
        """`SLURM_RESTART_COUNT`: how often the job was requeued."""
        return read_or_0("SLURM_RESTART_COUNT", hint=_HINT)

    @property
    def shows_own_device(self) -> bool:
        """True with `--gpus-per-task`, and with `--gpu-bind` to one for each task, or several."""
        tres, bind = (
            os.environ.get(name, "") for name in ("SLURM_TRES_PER_TASK", "SLURM_GPU_BIND")
        )
        return (
            "SLURM_GPUS_PER_TASK" in os.environ
            or "gres/gpu" in tres
            or any(part.startswith(("single:", "per_task:")) for part in bind.split(","))
        )

    def num_nodes(self) -> int | None:
        """`SLURM_STEP_NUM_NODES`, or that of the job."""
        return _num_nodes()

    def validate(self, num_devices: int, num_nodes: int) -> None:
        """Tasks and nodes of the step must be what the arguments ask for.

        Raises:
            ConfigurationError: they aren't.
        """
        tasks, nodes = _num_tasks(), _num_nodes()
        cure = (
            f"Pass devices={max(1, tasks // nodes)} and num_nodes={nodes}, or ask SLURM for "
            f"--nodes={num_nodes} --ntasks-per-node={num_devices}."
        )
        check_world(
            starter="srun",
            world_size=tasks,
            world_variable="SLURM_NTASKS",
            num_devices=num_devices,
            num_nodes=num_nodes,
            cure=cure,
        )
        if nodes != num_nodes:
            raise ConfigurationError(
                f"srun runs this step on {nodes} node{'s' * (nodes > 1)} "
                f"(SLURM_NNODES={nodes}), but num_nodes={num_nodes}. {cure}"
            )

    def job_id(self) -> str | None:
        """`SLURM_JOB_ID`."""
        return os.environ.get("SLURM_JOB_ID")

    def requeue(self) -> bool:
        """Ask SLURM to run the job again; a task of an array is named as one. False if SLURM
        refuses.
        """
        job = self.job_id()
        if "SLURM_ARRAY_TASK_ID" in os.environ:
            job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
        if job is None:
            return False
        try:
            done = subprocess.run(["scontrol", "requeue", job], check=False, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


def _num_tasks() -> int:
    return read_int("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", hint=_HINT, minimum=1)


def _num_nodes() -> int:
    return read_int(
        "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", hint=_HINT, minimum=1
    )


def first_host(nodelist: str) -> str:
    """The first host of SLURM's compressed list: `"gpu[003-005,010]-ib,login"` begins with
    `"gpu003-ib"`.

    Raises:
        ConfigurationError: it isn't such a list.
    """
    # Up to the first comma that isn't in brackets; then of each pair of brackets the first number.
    first = re.match(r"(?:[^,\[\]]|\[[^\[\]]*\])+(?=,|$)", nodelist)
    host = ""
    if first:
        host = re.sub(r"\[(\w+)[^\]]*\]", r"\1", first.group())
    if not re.fullmatch(r"[\w.:-]+", host):
        raise ConfigurationError(
            "The environment variable SLURM_STEP_NODELIST or SLURM_JOB_NODELIST should be a list "
            f"of hosts such as 'node[01-04]', but it is {nodelist!r}. Set MASTER_ADDR to the host "
            "of rank 0."
        )
    return host
