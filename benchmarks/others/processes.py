"""Work in forked processes, which begin at once since all is imported already; alone, or as the
ranks of a group.
"""

import os
import pickle
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch._dynamo  # noqa: F401  # every optimizer imports it, which takes a second

FORK = get_context("fork")


@dataclass(frozen=True)
class Failure:
    """A process that returned nothing.

    Attributes:
        kind: of its exception, or how it ended.
        text: of its exception, a line of it.
    """

    kind: str
    text: str = ""


def group_environment(rank: int, num_ranks: int, port: int) -> dict[str, str]:
    """The variables by which torchrun tells a process where it stands."""
    ranks = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": num_ranks,
        "LOCAL_WORLD_SIZE": num_ranks,
    }
    others = {
        "GROUP_RANK": 0,
        "TORCHELASTIC_RUN_ID": "others",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return {name: str(value) for name, value in (ranks | others).items()}


def run(work: Callable[[], Any], variables: dict[str, str], pipe: Any, shows: bool) -> None:
    os.environ.update(variables)
    if not shows:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            os.dup2(nowhere, number)
    try:
        result = pickle.dumps(work())
    except BaseException as error:
        result = pickle.dumps(Failure(type(error).__name__, str(error).strip().partition("\n")[0]))
    pipe.send_bytes(result)
    os._exit(0)


def forked(work: Callable[[], Any], num_ranks: int = 1, *, limit_s: float = 240) -> list[Any]:
    """The results of `work` in so many new processes; a Failure for one that raised, died or took
    too long.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sys.stdout.flush()
    pipes, processes = [], []
    for rank in range(num_ranks):
        own, others = FORK.Pipe(duplex=False)
        variables = group_environment(rank, num_ranks, port) if num_ranks > 1 else {}
        process = FORK.Process(target=run, args=(work, variables, others, "SHOW" in os.environ))
        process.start()
        others.close()
        pipes.append(own)
        processes.append(process)
    results: list[Any] = []
    end = time.monotonic() + limit_s
    for pipe in pipes:
        try:
            results.append(
                pickle.loads(pipe.recv_bytes())
                if pipe.poll(end - time.monotonic())
                else Failure("late")
            )
        except EOFError:
            results.append(Failure("died"))
        if isinstance(results[-1], Failure):
            end = min(end, time.monotonic() + 10)  # The others may wait for this one.
    for process in processes:
        process.kill()
        process.join()
    return results
