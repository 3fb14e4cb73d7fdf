"""LSF's jsrun."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from core.cluster.variables import (
    all_set,
    check_world,
    derived_port,
    read_address,
    read_int,
    read_port,
    read_text,
)
from core.contract import Absent, ClusterEnvironment, ConfigurationError, Found

if TYPE_CHECKING:
    from core.contract.accelerator import Detection

_HINT = "jsrun sets it: start the script with jsrun, inside a job of bsub."
_STEP_VARIABLES = ("LSB_JOBID", "LSB_DJOB_RANKFILE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE")


class LSFEnvironment(ClusterEnvironment):
    """A job step that LSF's `jsrun` started, one task a rank.

    Variables:
        LSB_JOBID: name of the job; the port is derived from it.
        LSB_DJOB_RANKFILE: a file with one host name a line: the launch node, then the host of every
            slot.
        JSM_NAMESPACE_RANK, JSM_NAMESPACE_SIZE, JSM_NAMESPACE_LOCAL_RANK: ranks, and number of
            tasks.
        MASTER_ADDR, MASTER_PORT: optional; the user's choice of where the ranks meet.
    """

    @classmethod
    def detect(cls) -> Detection:
        """Found if jsrun started this process as one task of a job."""
        for name in _STEP_VARIABLES:
            if not all_set(name):
                return Absent(f"{name} is not set")
        return Found(read_int("JSM_NAMESPACE_SIZE", hint=_HINT, minimum=1), priority=80)

    @property
    def main_address(self) -> str:
        """`MASTER_ADDR`, or the first compute host of the job."""
        return read_address() or _compute_hosts()[0]

    @property
    def main_port(self) -> int:
        """`MASTER_PORT`, or a port from 15000 to 29999 that follows from the job."""
        chosen = read_port("Unset it, and the port follows from the job's number.")
        return chosen or derived_port(read_text("LSB_JOBID", hint=_HINT))

    def world_size(self) -> int:
        """`JSM_NAMESPACE_SIZE`."""
        return read_int("JSM_NAMESPACE_SIZE", hint=_HINT, minimum=1)

    def global_rank(self) -> int:
        """`JSM_NAMESPACE_RANK`."""
        return read_int("JSM_NAMESPACE_RANK", hint=_HINT)

    def local_rank(self) -> int:
        """`JSM_NAMESPACE_LOCAL_RANK`."""
        return read_int("JSM_NAMESPACE_LOCAL_RANK", hint=_HINT)

    def node_rank(self) -> int:
        """Place of this host among the job's compute hosts.

        Raises:
            ConfigurationError: this host is not among them.
        """
        hosts, own = _compute_hosts(), socket.gethostname()
        names = [host.partition(".")[0] for host in hosts]
        try:
            return names.index(own.partition(".")[0])
        except ValueError:
            raise ConfigurationError(
                f"LSB_DJOB_RANKFILE lists {', '.join(hosts)}, but this host is {own!r}. {_HINT}"
            ) from None

    def validate(self, num_devices: int, num_nodes: int) -> None:
        """The number of tasks must be the number of devices.

        Raises:
            ConfigurationError: it isn't.
        """
        world_size, nodes = self.world_size(), len(_compute_hosts())
        check_world(
            starter="jsrun",
            world_size=world_size,
            world_variable="JSM_NAMESPACE_SIZE",
            num_devices=num_devices,
            num_nodes=num_nodes,
            cure=f"Pass devices={max(1, world_size // nodes)} and num_nodes={nodes}, "
            f"or start it with jsrun --np {num_devices * num_nodes}.",
        )

    def job_id(self) -> str | None:
        """`LSB_JOBID`."""
        return os.environ.get("LSB_JOBID")


def _compute_hosts() -> list[str]:
    """The job's hosts, each once and in order, without the launch node that heads the file.

    Raises:
        ConfigurationError: the file can't be read, or names no host.
    """
    path = read_text("LSB_DJOB_RANKFILE", hint=_HINT)
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split()
    except OSError as error:
        raise ConfigurationError(
            f"LSB_DJOB_RANKFILE names {path!r}, which can't be read: {error}. {_HINT}"
        ) from error
    if not lines:
        raise ConfigurationError(f"LSB_DJOB_RANKFILE names {path!r}, which is empty. {_HINT}")
    # A host is listed once for each of its slots.
    return list(dict.fromkeys(lines[1:] or lines))
