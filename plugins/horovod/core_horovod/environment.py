"""`horovodrun`: starts a script once a rank, with its numbers in variables."""

from __future__ import annotations

import os

from core import Absent, ClusterEnvironment, ConfigurationError, Found

__all__ = ["HorovodEnvironment"]

_RANK, _SIZE = "HOROVOD_RANK", "HOROVOD_SIZE"
_LOCAL_RANK, _LOCAL_SIZE = "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"
_NODE, _NODES = "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"
_MEETING_PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT"
_FIRST_PORT, _NUM_PORTS = 15_000, 15_000  # below 30000 no system hands out ephemeral ports


class HorovodEnvironment(ClusterEnvironment):
    """`horovodrun` with gloo. Where it runs over MPI, MPI has the ranks, and another environment
    reads them.

    Variables, set by horovodrun:
        HOROVOD_RANK, HOROVOD_SIZE: number of this process, and of all.
        HOROVOD_LOCAL_RANK, HOROVOD_LOCAL_SIZE: the same on this node.
        HOROVOD_CROSS_RANK: number of this node.
        HOROVOD_GLOO_RENDEZVOUS_PORT: port of horovodrun's own server, from which `main_port` is
        derived. MASTER_ADDR, MASTER_PORT: where strategies other than `horovod` meet; on one node
        they may be left out.
    """

    @classmethod
    def detect(cls) -> Found | Absent:
        """Found if the variables of a rank are set."""
        if not (os.environ.get(_RANK, "").strip() and os.environ.get(_SIZE, "").strip()):
            return Absent(f"{_RANK} and {_SIZE} are not set")
        return Found(_read(_SIZE, minimum=1), priority=80)

    @property
    def main_address(self) -> str:
        """`MASTER_ADDR`; on one node this machine.

        Raises:
            ConfigurationError: there are several nodes, and nothing names the first.
        """
        if address := os.environ.get("MASTER_ADDR", "").strip():
            return address
        if _read(_LOCAL_SIZE, minimum=1) == self.world_size():
            return "127.0.0.1"
        raise ConfigurationError(
            "horovodrun's variables don't name the host of rank 0. strategy='horovod' doesn't need "
            "it; for another one set MASTER_ADDR for all ranks, as in `MASTER_ADDR=host1 "
            "horovodrun ...`."
        )

    @property
    def main_port(self) -> int:
        """`MASTER_PORT`; else one that follows from the port of horovodrun's server, which all
        ranks know.
        """
        if os.environ.get("MASTER_PORT", "").strip():
            return _read("MASTER_PORT", minimum=1)
        return _FIRST_PORT + _read(_MEETING_PORT, minimum=1) % _NUM_PORTS

    def world_size(self) -> int:
        """Number of ranks that horovodrun started."""
        return _read(_SIZE, minimum=1)

    def global_rank(self) -> int:
        """Number of this rank."""
        return _read(_RANK)

    def local_rank(self) -> int:
        """Number of this rank on its node."""
        return _read(_LOCAL_RANK)

    def node_rank(self) -> int:
        """Number of this node."""
        return _read(_NODE)

    def validate(self, num_devices: int, num_nodes: int) -> None:
        """The number of ranks must be the number of devices, on each node the same.

        Raises:
            ConfigurationError: it isn't.
        """
        size, local = self.world_size(), _read(_LOCAL_SIZE, minimum=1)
        if size != num_devices * num_nodes or local != num_devices:
            raise ConfigurationError(
                f"horovodrun started {size} processes ({_SIZE}={size}), {local} of them on this "
                f"node, but devices={num_devices} and num_nodes={num_nodes} ask for "
                f"{num_devices * num_nodes}, {num_devices} on each. Pass devices={local} and "
                f"num_nodes={max(1, size // local)}, or start it with horovodrun -np "
                f"{num_devices * num_nodes}."
            )


def _read(name: str, minimum: int = 0) -> int:
    text = os.environ.get(name, "").strip()
    if not (text.isascii() and text.isdigit()) or int(text) < minimum:
        raise ConfigurationError(
            f"The environment variable {name} must be a number of at least {minimum}, but it is "
            f"{text!r}. horovodrun sets it for every rank: start the script with it, or unset "
            "HOROVOD_RANK and HOROVOD_SIZE."
        )
    return int(text)
