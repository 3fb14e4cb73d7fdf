"""Beginning and ending Horovod, again and again within one script, whatever has made the
processes.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from core import ConfigurationError, FingerprintError, WorkerError
from core.cluster import reserve_port
from core_horovod import library

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from core import ClusterEnvironment

_PAUSE_S = 0.02
_ANSWER_S = 5.0
_begins = itertools.count()


class Rendezvous:
    """Horovod, from its beginning to its end, and the server at which its ranks meet.

    Where that server is missing, rank 0 has it until the end. All ranks make one, in the same
    order.

    Args:
        environment: has the ranks.
        num_local: number of ranks on this node.
        timeout_s: seconds after which ranks that don't come are an error.
        settings: variables that Horovod reads when it begins.

    Raises:
        ConfigurationError: Horovod counts other ranks than the environment.
        WorkerError: a rank hasn't come in time.
    """

    def __init__(
        self,
        environment: ClusterEnvironment,
        num_local: int,
        timeout_s: float,
        settings: Mapping[str, str],
    ) -> None:
        self._hvd, self._timeout_s, self._number = library.load(), timeout_s, next(_begins)
        self.rank, self.size = environment.global_rank(), environment.world_size()
        self._server: _HorovodServer | None = None
        self._place = ""
        self._is_ours = not self._hvd.is_initialized()
        if self._is_ours:
            try:
                self._begin(environment, num_local, settings)
            except BaseException:
                self.end()
                raise
        if (found := (self._hvd.rank(), self._hvd.size())) != (self.rank, self.size):
            self.end()
            raise ConfigurationError(
                f"This process is rank {self.rank} of {self.size}, and Horovod counts it as rank "
                f"{found[0]} of {found[1]}. Start all ranks by the same means: horovodrun, or the "
                "launcher of this strategy."
            )

    def _begin(
        self, environment: ClusterEnvironment, num_local: int, settings: Mapping[str, str]
    ) -> None:
        places: dict[str, str] = {}
        if _has_server(self.rank, self.size):
            address, port = (
                os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
                os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"],
            )
            self._place = f"http://{address}:{port}"
        elif not self._hvd.mpi_built():
            # Horovod's client takes no names of IPv6
            address = socket.gethostbyname(environment.main_address)
            number = (
                _received_port(environment)
                if environment.store_is_hosted
                else environment.main_port
            )
            if self.rank == 0:
                self._server = _HorovodServer(address, number, num_local, self.size, self._number)
            self._place = f"http://{address}:{number}"
            self._await_server()
            places = _places(environment, num_local, address, number, self._timeout_s)
        # Horovod's own limit is the later one: its error doesn't say which rank is missing.
        limits = {
            "HOROVOD_STALL_CHECK_TIME_SECONDS": str(max(1, int(self._timeout_s))),
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(max(2, int(2 * self._timeout_s))),
        }
        with _variables({**limits, **places, **settings}):
            try:
                self._hvd.init()
            except ValueError as error:
                # its own message sends the reader to what its C++ has written to stderr
                raise WorkerError(
                    f"Horovod could not begin on rank {self.rank} of {self.size}: a rank has "
                    f"ended, or has not come within {self._timeout_s:g} s. {error}",
                    rank=self.rank,
                ) from error

    def _await_server(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        # an earlier server at this place may not have closed yet
        while self._ask(str(self._number)) is None:
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"Rank 0 did not start Horovod within {self._timeout_s:g} s, and rank "
                    f"{self.rank} waits for it at {self._place}. All ranks must make the same "
                    "calls.",
                    rank=0,
                )
            time.sleep(_PAUSE_S)

    def arrive(self, point: str) -> None:
        """Any rank. Say that it has come to a point."""
        if self._place:
            url = f"{self._place}/core/{self._number}-{point}-{self.rank}"
            request = urllib.request.Request(url, data=b"come", method="PUT")
            with suppress(OSError), urllib.request.urlopen(request, timeout=_ANSWER_S):
                pass

    def absent(self, point: str) -> list[int]:
        """Any rank. Those that haven't come to a point; none if that is unknown."""
        if not self._place:
            return []
        return [
            rank for rank in range(self.size) if self._ask(f"{self._number}-{point}-{rank}") is None
        ]

    def _ask(self, key: str) -> bytes | None:
        try:
            with urllib.request.urlopen(f"{self._place}/core/{key}", timeout=_ANSWER_S) as answer:
                found: bytes = answer.read()
                return found
        except OSError:
            return None

    def end(self) -> None:
        """All ranks; idempotent. End Horovod, if it was begun here, and the server."""
        if self._is_ours:
            self._is_ours = False
            self._hvd.shutdown()
        if self._server is not None:
            self._server.close()
            self._server = None


class _HorovodServer:
    """Horovod's own server, on rank 0."""

    def __init__(self, address: str, port: int, num_local: int, size: int, number: int) -> None:
        http = library.load("horovod.runner.http.http_server")
        hosts = library.load("horovod.runner.common.util.hosts")
        try:
            place = (address if address.startswith("127.") else "", port)
            self._server = http.RendezvousHTTPServer(place, http.RendezvousHandler, 0)
        except OSError as error:
            raise ConfigurationError(
                f"Rank 0 can't listen at {address}:{port}, where ranks meet: {error}"
            ) from error
        plan = ",".join(f"{_host(node)}:{num_local}" for node in range(size // num_local))
        self._server.init(hosts.get_host_assignments(hosts.parse_hosts(plan), size))
        self._server.cache["core"] = {str(number): b"begun"}
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_PAUSE_S,), name="rendezvous", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _has_server(rank: int, size: int) -> bool:
    """True if horovodrun, or the launcher, has begun a server at which these very ranks meet."""
    configured = [os.environ.get(f"HOROVOD_{name}") for name in ("RANK", "SIZE")]
    return configured == [str(rank), str(size)] and "HOROVOD_GLOO_RENDEZVOUS_PORT" in os.environ


def _places(
    environment: ClusterEnvironment, num_local: int, address: str, port: int, timeout_s: float
) -> dict[str, str]:
    numbers = {
        "RANK": environment.global_rank(),
        "SIZE": environment.world_size(),
        "LOCAL_RANK": environment.local_rank(),
        "LOCAL_SIZE": num_local,
        "CROSS_RANK": environment.node_rank(),
        "CROSS_SIZE": environment.world_size() // num_local,
        "HOSTNAME": _host(environment.node_rank()),
        "GLOO_RENDEZVOUS_ADDR": address,
        "GLOO_RENDEZVOUS_PORT": port,
        "GLOO_TIMEOUT_SECONDS": max(2, int(timeout_s)),
        "GLOO_IFACE": os.environ.get("HOROVOD_GLOO_IFACE") or _interface(address),
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
    }
    return {f"HOROVOD_{name}": str(value) for name, value in numbers.items()}


def _host(node: int) -> str:
    return f"node-{node}"


def _interface(address: str) -> str:
    """Name of the network interface by which this machine reaches `address`; empty if that is
    unknown.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # nothing is sent
        probe.connect((address, 9))
        own = probe.getsockname()[0]
    found = library.load("psutil").net_if_addrs()
    return next(
        (name for name, places in found.items() if any(place.address == own for place in places)),
        "",
    )


def _received_port(environment: ClusterEnvironment) -> int:
    """A free port of rank 0, which it sends to the others through the store that listens at the
    main address.
    """
    from torch._C._distributed_c10d import TCPStore  # torch.distributed's own, with types

    store = TCPStore(environment.main_address, environment.main_port, is_master=False)
    key = f"core_horovod/{environment.restart_count}/port"
    if environment.global_rank() == 0:
        store.set(key, str(reserve_port(environment, host="")))
    return int(store.get(key))


def compare(fingerprints: list[Any]) -> None:
    """Check that all ranks have resolved to the same plugins.

    Raises:
        FingerprintError: they haven't; the first difference is shown.
    """
    for rank, other in enumerate(fingerprints):
        if other != fingerprints[0]:
            theirs, ours = (
                sorted({*rows} - {*rest})
                for rows, rest in ((other, fingerprints[0]), (fingerprints[0], other))
            )
            raise FingerprintError(
                f"The ranks of this run don't use the same plugins: rank {rank} has {theirs} where "
                f"rank 0 has {ours} (kind, alias, provider, version). Install the same versions on "
                "every node, and start every rank with the same arguments."
            )


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for as long as Horovod reads them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
