"""The first connection of a rank to the store."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore  # torch.distributed's own, with types

from core.contract import ConfigurationError
from core.strategies.rendezvous.timeout import Wait, answers, await_server, meets_within

REACH_S = 20.0
"""Seconds within which the store must answer at the address that all ranks use: names may come
late.
"""

CONNECT_S = 12.0
"""Seconds for which torch tries to connect to the store; its last try may begin two and a half
times as late.
"""


def serve(address: str, port: int, timeout: timedelta) -> TCPStore:
    """Rank 0. Start the server of the store, at a port of this machine, to which all ranks connect
    by its address.

    Raises:
        ConfigurationError: another process has the port, or the address isn't this machine's.
    """
    try:  # not by the address: torch would try for a minute, and print pages
        store = TCPStore("localhost", port, is_master=True, timeout=timeout, wait_for_workers=False)
    except RuntimeError as error:
        raise ConfigurationError(
            f"Rank 0 can't listen at port {port} of this machine: another process has it, perhaps "
            f"one of an earlier run ({error}). End that, set MASTER_PORT to another port, or leave "
            "MASTER_PORT out where core starts the processes, so that a free one is chosen."
        ) from None
    wait = Wait(0, timedelta(seconds=min(REACH_S, timeout.total_seconds())))
    while not answers(address, port):
        if wait.is_over:
            raise ConfigurationError(
                f"Rank 0 listens at port {port} of this machine, and can't reach it at the address "
                f"{address!r}, as all ranks do: it is another machine's, perhaps of an earlier "
                "run, or a firewall is between. Set MASTER_ADDR to an address of the machine that "
                "runs rank 0, or leave it out on a single machine."
            )
        wait.pause(lambda: [])
    return store


def connect(address: str, port: int, rank: int, timeout: timedelta) -> TCPStore:
    """Other ranks. Connect to the store that rank 0 or a launcher serves.

    Raises:
        WorkerError: nothing listens there in time.
        ConfigurationError: what listens there is no store.
    """
    await_server(address, port, rank, meets_within(timeout))
    made = Future[TCPStore]()
    limit = min(timedelta(seconds=CONNECT_S), timeout)

    def make() -> None:
        try:
            store = TCPStore(address, port, timeout=limit, wait_for_workers=False)
            store.set_timeout(timeout)
            made.set_result(store)
        except RuntimeError as error:
            made.set_exception(error)

    # In a thread: torch waits without a limit for the first answer. What it writes comes before the
    # error below.
    threading.Thread(target=make, name="connect to the store", daemon=True).start()
    try:
        return made.result(3 * limit.total_seconds() + 3)
    except (TimeoutError, RuntimeError):
        raise ConfigurationError(
            f"Rank {rank} looks for rank 0 at {address}:{port}, and what listens there doesn't "
            "answer as torch's store does: MASTER_ADDR or MASTER_PORT is another program's, "
            "perhaps of an earlier run. Set both to an address of the machine that runs rank 0 and "
            "a free port of it."
        ) from None
