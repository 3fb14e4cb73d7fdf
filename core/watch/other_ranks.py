"""The statuses of all ranks as this one has read them, and the ranks that publish none any more."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from core.watch import kernel
from core.watch.local_ranks import LocalRanks
from core.watch.rank_status import RankStatus

if TYPE_CHECKING:
    from core.watch.boards import Board
    from core.watch.options import WatchdogOptions


def seen(rank: int) -> str:
    """The name under which a rank publishes its status."""
    return f"seen/{rank}"


class OtherRanks:
    """Reads the statuses of all ranks, round by round.

    Attributes:
        statuses: the last one of each rank that has published any.
    """

    def __init__(
        self, options: WatchdogOptions, rank: int, world_size: int, machine: str, looks_every: int
    ) -> None:
        """Make it.

        Args:
            options: the user's.
            rank: of this process.
            world_size: number of ranks.
            machine: of this process.
            looks_every: rounds after which a rank is silent.
        """
        self._rank, self._world_size = rank, world_size
        self._machine, self._looks_every = machine, looks_every
        self._local_ranks = LocalRanks(max(options.limit, options.end_after).total_seconds())
        self._heard: dict[int, tuple[int, int, float]] = {}
        """By rank: the number of its last status, and the round and the time at which that was
        read.
        """
        self._num_rounds = self._call_began_round = 0
        self.statuses: dict[int, RankStatus] = {}

    @property
    def all(self) -> list[RankStatus]:
        """All statuses, by rank, once each rank has published one."""
        return [self.statuses[rank] for rank in range(self._world_size)]

    def begin_call(self) -> None:
        """A rank has called: it is from now on that a rank which publishes nothing is silent."""
        self._call_began_round = self._num_rounds

    def begin_round(self) -> None:
        """Count the round."""
        self._num_rounds += 1

    def local_pids(self) -> set[int]:
        """Processes of ranks of this machine."""
        statuses = [*self.statuses.values()]  # another thread may add to it
        return {each.pid for each in statuses if each.machine == self._machine}

    def is_gone(self, rank: int) -> bool:
        """True if the process of a rank of this machine has ended."""
        last = self.statuses.get(rank)
        return last is not None and last.machine == self._machine and kernel.is_gone(last.pid)

    def read(self, board: Board, now_s: float) -> None:
        """Read what the ranks have published."""
        for rank, text in enumerate(board.read([seen(rank) for rank in range(self._world_size)])):
            if not text:
                continue
            status = RankStatus.from_text(text)
            number, _, heard_s = self._heard.get(rank, (-1, 0, 0.0))
            if status.number != number:
                self._heard[rank] = status.number, self._num_rounds, now_s
                self.statuses[rank] = status
                self._local_ranks.forget(rank)
            elif status.state == "left":
                self.statuses[rank] = replace(status.lost("left"), since_s=now_s - heard_s)

    def report_silent(self, board: Board, own: RankStatus) -> bool:
        """Publish the statuses of silent ranks. True if this rank is the first that is left, and
        knows of all.
        """
        silent = [rank for rank in range(self._world_size) if self._is_silent(rank)]
        for rank in silent:
            last = self.statuses.get(rank)
            if last is None:
                continue
            # From `/proc` on this machine, else as a rank of its own reports it.
            if last.machine == self._machine:
                found = self._local_ranks.examine(last, own)
                board.write(f"peer/{rank}", found.to_text())
            else:
                said = board.read([f"peer/{rank}"])[0]
                # Where no rank can look, it may be at work.
                end_after_s = self._local_ranks.longest_s
                found = replace(
                    last, state="silent", warn_after_s=own.warn_after_s, end_after_s=end_after_s
                )
                if said:
                    found = RankStatus.from_text(said)
            self.statuses[rank] = replace(found, since_s=max(found.since_s, own.since_s))
        left = (
            rank for rank, each in self.statuses.items() if rank not in silent and not each.is_lost
        )
        return len(self.statuses) == self._world_size and self._rank == min(left, default=-1)

    def _is_silent(self, rank: int) -> bool:
        """True if a rank has published no status since the call began, though it had the time."""
        if rank == self._rank or (rank in self.statuses and self.statuses[rank].state == "left"):
            return False
        heard = max(self._heard.get(rank, (0, 0, 0.0))[1], self._call_began_round)
        return self.is_gone(rank) or self._num_rounds - heard > self._looks_every + 2
