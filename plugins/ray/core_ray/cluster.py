"""The connection to a Ray cluster, and the room that a run takes there."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from core import DeviceError, LaunchError
from core_ray import library

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LOCAL = "local"
_ANSWERS_S = 10.0
"""Seconds in which a running cluster takes a connection, and answers."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The beginning of HTTP/2 with empty settings (RFC 9113, 3.4), to which gRPC's servers answer with
theirs.
"""


def where(address: str | None) -> str:
    """The cluster that a run goes to: `address`, or `RAY_ADDRESS`, or one of its own on this
    machine.
    """
    return address or os.environ.get("RAY_ADDRESS", "").strip() or LOCAL


@contextmanager
def connected(
    address: str, bundles: Sequence[Mapping[str, float]], options: Mapping[str, Any]
) -> Iterator[None]:
    """A context with a connection. One that is there already is used, and left as it is.

    Args:
        address: of a running cluster, or `"local"` for one that starts and ends with the context.
        bundles: what the run needs; a local cluster has as much of it, GPUs aside, which Ray
            counts.
        options: given to `ray.init`.

    Raises:
        LaunchError: no cluster is there.
    """
    ray = library.load()
    if ray.is_initialized():
        yield
        return
    handler, variables = signal.getsignal(signal.SIGTERM), dict(os.environ)
    try:
        try:
            _reach(address)
            ray.init(
                **(
                    {"address": address}
                    | (_local(bundles) if address == LOCAL else {})
                    | dict(options)
                )
            )
        except Exception as error:
            # of the connection, Ray's own, and a bare one where it starts slowly
            raise LaunchError(
                f"No Ray cluster can be used at {address!r}: {str(error).strip().rstrip('.')}. "
                "Start one with `ray start --head`, or leave out the address (and RAY_ADDRESS) for "
                "a local one that ends with the run."
            ) from error
        finally:
            # Ray's handler would end this process with code 15.
            if threading.current_thread() is threading.main_thread() and handler is not None:
                signal.signal(signal.SIGTERM, handler)
        yield
    finally:
        ray.shutdown()
        for name in os.environ.keys() - variables.keys():  # what Ray has set here
            del os.environ[name]


def _reach(address: str) -> None:
    """Connect to the cluster's port, and wait for an answer: Ray itself waits for minutes, deaf to
    signals.
    """
    if address == "auto":
        address = library.load("ray._private.services").get_ray_address_from_environment(
            address, None
        )
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_S) as connection:
            connection.sendall(_HELLO)
            try:
                connection.recv(1)
            except TimeoutError:
                raise TimeoutError(
                    f"what listens there has not answered within {_ANSWERS_S:g} s"
                ) from None


def gpus_of_a_node(address: str, num_nodes: int, options: Mapping[str, Any]) -> int:
    """The number of GPUs that each of so many machines of a running cluster has.

    Raises:
        DeviceError: there are none, or not on as many machines.
        LaunchError: no cluster is there.
    """
    with connected(address, [], options):
        nodes = [node["Resources"] for node in library.load().nodes() if node["Alive"]]
    counts = sorted((int(node.get("GPU", 0)) for node in nodes), reverse=True)
    if len(counts) < num_nodes or not counts[num_nodes - 1]:
        raise DeviceError(
            f"devices='auto' takes all GPUs of num_nodes={num_nodes} machines, and those of the "
            f"Ray cluster have {', '.join(map(str, counts))} GPUs. If more machines are started "
            "when they are asked for, say how many GPUs each has: devices=8."
        )
    return counts[num_nodes - 1]


def _local(bundles: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    names = sorted({name for bundle in bundles for name in bundle})
    total = {name: math.ceil(sum(bundle.get(name, 0) for bundle in bundles)) for name in names}
    total.pop("GPU", None)
    return {
        "num_cpus": max(1, total.pop("CPU", 0)),
        "resources": total,
        "include_dashboard": False,
        "logging_level": "warning",
    }


@contextmanager
def room(bundles: Sequence[Mapping[str, float]], strategy: str, timeout_s: float) -> Iterator[Any]:
    """A context with a placement group, a bundle for each node of the run.

    Raises:
        LaunchError: the cluster has no room for it in time; the message says what it has.
    """
    groups = library.load("ray.util.placement_group")
    group = groups.placement_group([dict(bundle) for bundle in bundles], strategy=strategy)
    try:
        if not group.wait(timeout_s):
            raise LaunchError(
                _no_room(groups.placement_group_table(group), bundles, strategy, timeout_s)
            )
        yield group
    finally:
        groups.remove_placement_group(group)


def _no_room(
    table: Mapping[str, Any],
    bundles: Sequence[Mapping[str, float]],
    strategy: str,
    timeout_s: float,
) -> str:
    ray = library.load()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    has = "; ".join(
        f"node {node['NodeManagerAddress']} with {_shown(node['Resources'])}" for node in nodes
    )
    needs = (
        f"{len(bundles)} bundle{'s' * (len(bundles) != 1)} of {_shown(bundles[0])}, placed by "
        f"{strategy}"
    )
    state = table.get("stats", {}).get("scheduling_state", table.get("state", "pending"))
    return (
        f"The Ray cluster has had no room for this run within {timeout_s:g} s: it needs {needs} "
        f"({state}). The cluster has {has}. Free now: {_shown(ray.available_resources())}. Ask for "
        "fewer devices, nodes or resources_per_worker, wait for other jobs, add nodes, or raise "
        "placement_timeout_s."
    )


def _shown(resources: Mapping[str, float]) -> str:
    """`"CPU: 2, GPU: 1"`, without what Ray counts for itself."""
    own = ("node:", "memory", "object_store_memory")
    shown = [
        f"{name}: {amount:g}"
        for name, amount in sorted(resources.items())
        if not name.startswith(own)
    ]
    return ", ".join(shown) or "nothing"
