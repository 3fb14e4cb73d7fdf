"""Read what a scheduler has put into the environment, with errors that say what to do."""

from __future__ import annotations

import os
import zlib
from typing import ClassVar

from core.contract import ClusterEnvironment, ConfigurationError
from core.contract.rank_variables import are_set_by_core

FIRST_DERIVED_PORT = 15_000
NUM_DERIVED_PORTS = 15_000
"""Derived ports stay below 30000, where no system hands out ephemeral ones."""


def read_text(*names: str, hint: str) -> str:
    """The value of the first of these variables that is set.

    Raises:
        ConfigurationError: none is set, or it is empty; `hint` says what to do.
    """
    for name in names:
        value = os.environ.get(name, "").strip()
        if value:
            return value
    raise ConfigurationError(
        f"The environment variable {' or '.join(names)} is needed here and is not set. {hint}"
    )


def read_int(*names: str, hint: str, minimum: int = 0) -> int:
    """The value of the first of these variables that is set, as a number.

    Raises:
        ConfigurationError: none is set, or it isn't a number of at least `minimum`.
    """
    text = read_text(*names, hint=hint)
    if not (text.isascii() and text.isdigit()) or int(text) < minimum:
        name = next(name for name in names if os.environ.get(name, "").strip())
        raise ConfigurationError(
            f"The environment variable {name} must be a number of at least {minimum}, but it is "
            f"{text!r}. {hint}"
        )
    return int(text)


def read_or_0(name: str, *, hint: str) -> int:
    """The value of a variable as a number; 0 if it isn't set."""
    if not os.environ.get(name):
        return 0
    return read_int(name, hint=hint)


def read_address() -> str:
    """`MASTER_ADDR`, the user's choice of where the ranks meet; empty if it isn't set."""
    return os.environ.get("MASTER_ADDR", "").strip()


def read_port(hint: str, name: str = "MASTER_PORT") -> int | None:
    """`MASTER_PORT`, or another variable, if it is set, else None.

    Raises:
        ConfigurationError: it isn't a port number.
    """
    if not os.environ.get(name, "").strip():
        return None
    port = read_int(name, hint=hint, minimum=1)
    if port > 65_535:
        raise ConfigurationError(
            f"The environment variable {name} must be at most 65535, but it is {port}. {hint}"
        )
    return port


def all_set(*names: str) -> bool:
    """True if all of these variables are set and not empty, and no rank among them was set by core
    itself.
    """
    if "RANK" in names and are_set_by_core():
        return False
    return all(os.environ.get(name, "").strip() for name in names)


def derived_port(job: str) -> int:
    """A port that all processes of one job derive alike, without a word between them, from the
    job's name.
    """
    return FIRST_DERIVED_PORT + zlib.crc32(job.encode()) % NUM_DERIVED_PORTS


def check_world(
    *,
    starter: str,
    world_size: int,
    world_variable: str,
    num_devices: int,
    num_nodes: int,
    cure: str,
    num_local: int = 1,
) -> None:
    """Compare the numbers of processes that a scheduler started with what the user asked for.

    Args:
        starter: the scheduler that started them.
        world_size: the number of processes.
        world_variable: the variable that holds this number.
        num_devices: asked for on each node.
        num_nodes: asked for.
        cure: ends the message.
        num_local: processes that are known to be on this node.

    Raises:
        ConfigurationError: they differ; the message shows both.
    """
    wanted = num_devices * num_nodes
    if world_size != wanted:
        raise ConfigurationError(
            f"{starter} started {world_size} process{'es' * (world_size != 1)} "
            f"({world_variable}={world_size}), but devices={num_devices} and num_nodes={num_nodes} "
            f"ask for {wanted}. {cure}"
        )
    if num_local > num_devices:
        raise ConfigurationError(
            f"{starter} started {num_local} processes on this node, but devices={num_devices} and "
            f"num_nodes={num_nodes} have room for {num_devices} on each. {cure}"
        )


class TorchVariables(ClusterEnvironment):
    """The base of the environments that set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for every
    process.
    """

    hint: ClassVar[str]
    """The advice where one of them isn't set: the end of the error's message."""

    @property
    def main_address(self) -> str:
        """`MASTER_ADDR`."""
        return read_text("MASTER_ADDR", hint=self.hint)

    @property
    def main_port(self) -> int:
        """`MASTER_PORT`."""
        # `read_int` raises where the variable isn't set.
        return read_port(self.hint) or read_int("MASTER_PORT", hint=self.hint, minimum=1)

    def world_size(self) -> int:
        """`WORLD_SIZE`."""
        return read_int("WORLD_SIZE", hint=self.hint, minimum=1)

    def global_rank(self) -> int:
        """`RANK`."""
        return read_int("RANK", hint=self.hint)
