"""The number of this process among a launcher's, for a run that has but one process of its own."""

from __future__ import annotations

import os

from core.contract import LaunchError
from core.display.warnings_once import begin_silence, end_silence

STARTING = "CORE_STARTING"
"""The variable with the channel of a rank that a launcher starts in a new interpreter."""

_known: list[tuple[int, int]] = []


def set_rank(rank: int, world_size: int) -> None:
    """Mark this process as a rank of several, for as long as it lives; one process alone needs no
    mark.
    """
    _known.clear()
    if world_size > 1:
        _known.append((rank, world_size))
    end_silence()


def is_inherited(channel: str) -> bool:
    """True if this process itself inherited the channel `"number:inode"`; a process that it starts
    hasn't.
    """
    number, _, inode = channel.partition(":")
    try:
        return bool(number) and os.fstat(int(number)).st_ino == int(inode)
    except (OSError, ValueError):
        return False


def begin_silence_until_call() -> None:
    """Show no warnings of a new interpreter that is a rank, until it comes to the call that it was
    made for.
    """
    if is_inherited(os.environ.get(STARTING, "")):
        begin_silence()


def refuse_second_zero() -> None:
    """Raise if a run of one process would be rank 0's in another rank of this program.

    Raises:
        LaunchError: with the lines to write.
    """
    rank, world_size = _rank_and_size() or (0, 1)
    if rank > 0:
        raise LaunchError(
            f"This program runs in {world_size} processes, this is rank {rank}, and devices=1 asks "
            "for a run of one process: each rank would do the whole of it, and write the same "
            "files. Let rank 0 do it alone,\n\n"
            "    if trainer.is_global_zero:  # of the Trainer or Fabric that runs in all of them\n"
            "        Trainer(devices=1).test(module, loader)\n\n"
            "after what runs in all of them, or put it into a program of its own; or use the same "
            "devices in both."
        )


def known_rank() -> int | None:
    """The rank that one of core's launchers has given this process; None if none has."""
    return (_rank_and_size() or (None,))[0]


def _rank_and_size() -> tuple[int, int] | None:
    if _known:
        return _known[0]
    # a worker that hasn't come to the call that it was made for
    if is_inherited(os.environ.get("CORE_CHANNEL", "")):
        return int(os.environ["CORE_GLOBAL_RANK"]), int(os.environ["CORE_WORLD_SIZE"])
    return None
