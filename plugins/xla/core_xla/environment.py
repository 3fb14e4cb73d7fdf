"""The hosts of a TPU slice: each has its number, and the first one is where ranks meet."""

from __future__ import annotations

import os

from core import Absent, ConfigurationError, Found
from core.cluster import LocalEnvironment

_HOSTS, _NUMBER = "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"
_PORT = 29500


class XLAEnvironment(LocalEnvironment):
    """A slice of several TPU hosts, on each of which the script was started; processes are made by
    the launcher.

    Variables, as a TPU runtime sets them:
        TPU_WORKER_HOSTNAMES: names of the hosts, separated by commas, in their order.
        TPU_WORKER_ID: number of this host, from 0.
        MASTER_PORT: where rank 0 meets the others; 29500 if it isn't set.
    """

    _is_alone: bool = False
    _is_set: bool = False

    @classmethod
    def detect(cls) -> Found | Absent:
        """Found on a host of several. One host needs nothing but the local environment."""
        hosts = _hosts()
        return (
            Found(len(hosts), priority=10)
            if len(hosts) > 1
            else Absent(f"{_HOSTS} names no several hosts")
        )

    @property
    def main_address(self) -> str:
        """`MASTER_ADDR`, or the first host of the slice."""
        return os.environ.get("MASTER_ADDR", "").strip() or next(iter(_hosts()), "127.0.0.1")

    @property
    def main_port(self) -> int:
        """`MASTER_PORT`, or 29500: all hosts have to know it."""
        return (
            super().main_port
            if os.environ.get("MASTER_PORT", "").strip() or len(_hosts()) < 2
            else _PORT
        )

    def world_size(self) -> int:
        """Number of processes; before the launcher has spoken, one for each host."""
        return super().world_size() if self._is_decided else len(_hosts())

    def global_rank(self) -> int:
        """Number of this process among all; before the launcher has spoken, that of this host."""
        return super().global_rank() if self._is_decided else self._number()

    def node_rank(self) -> int:
        """Number of this host in a run on all of them; 0 in a run on one.

        Raises:
            ConfigurationError: `TPU_WORKER_ID` is no number of a host.
        """
        return super().node_rank() if self._is_decided else self._number()

    def set_world(
        self, *, world_size: int, global_rank: int, local_rank: int, node_rank: int
    ) -> None:
        """Set the ranks, as the launcher has numbered them."""
        super().set_world(
            world_size=world_size,
            global_rank=global_rank,
            local_rank=local_rank,
            node_rank=node_rank,
        )
        self._is_set = True

    @property
    def _is_decided(self) -> bool:
        """True if the numbers are the launcher's, or those of a run on this host alone."""
        return self._is_set or self._is_alone or len(_hosts()) < 2

    def _number(self) -> int:
        text, hosts = os.environ.get(_NUMBER, "").strip(), _hosts()
        if not text.isdecimal() or int(text) >= len(hosts):
            raise ConfigurationError(
                f"{_NUMBER}={text!r}: expected the number of this host among the {len(hosts)} of "
                f"{_HOSTS}, from 0."
            )
        return int(text)

    def validate(self, num_devices: int, num_nodes: int) -> None:
        """Compare with the number of hosts. A run on one node is one on this host alone.

        Raises:
            ConfigurationError: several nodes, and other ones than there are hosts.
        """
        self._is_alone = num_nodes == 1
        if num_nodes not in (1, len(_hosts())):
            raise ConfigurationError(
                f"num_nodes={num_nodes}, and {_HOSTS} names {len(_hosts())} hosts. Pass that, or 1."
            )


def _hosts() -> list[str]:
    return [name.strip() for name in os.environ.get(_HOSTS, "").split(",") if name.strip()]
