"""The exchange of statuses between the ranks, for a while after one of them has called."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from core.watch.boards import CALL, Board
from core.watch.other_ranks import seen
from core.watch.rank_status import RankStatus

if TYPE_CHECKING:
    from core.watch.decision import StandstillDecision
    from core.watch.other_ranks import OtherRanks
    from core.watch.own_status import OwnStatus
    from core.watch.store_access import StoreAccess

_LASTS_S = 15.0
"""Seconds for which a rank keeps publishing its status after a call."""
_CALLS_EVERY_S = 5.0
_STORE_ANSWERS_S = 5.0
_ROUND_S = 0.5


class StatusExchange:
    """Publishes this rank's status and reads the others', through the store as long as it
    answers.
    """

    def __init__(
        self, own: OwnStatus, store: StoreAccess, others: OtherRanks, decision: StandstillDecision
    ) -> None:
        self._own, self._store, self._others, self._decision = own, store, others, decision
        self._number = self._call = 0
        self._called_s = self._began_call_s = self._calls_s = self._answered_s = -1e9

    def enter(self) -> None:
        """Publish this rank's host and process, and read those of rank 0, with which the store may
        be lost.
        """
        board, name, first = self._store.board, seen(0), ""
        self._write_status(board, self._own.named("computes"))
        while not first:
            time.sleep(0.05)
            first = board.read([name])[0]
        self._others.statuses.setdefault(0, RankStatus.from_text(first))

    def leave(self, timeout_s: float) -> None:
        """Publish to the other ranks that this one has left."""
        left = replace(self._own.named("left"), number=self._number + 1)
        self._store.ask(
            lambda: self._store.board.write(seen(self._own.rank), left.to_text()), timeout_s
        )

    def call(self, now_s: float) -> None:
        """Begin, or go on."""
        if not self.is_on(now_s):
            self._began_call_s = now_s
            self._others.begin_call()
        self._called_s = max(self._called_s, now_s)

    def is_on(self, now_s: float) -> bool:
        """True for a while after a call."""
        return now_s - self._called_s < _LASTS_S

    def listen(self) -> None:
        """Check for a call or a verdict of another rank."""
        call = int(self._store.board.read([CALL])[0] or 0)
        if call > self._call:
            self._call = call
            self.call(time.monotonic() - 1e-3)
        self._decision.read(self._store.board)

    def run(self, own: RankStatus, now_s: float) -> None:
        """Exchange statuses. A rank that called at this very moment calls the others too."""
        calls = self._called_s == now_s
        # a new call: the store has all its time
        self._answered_s = max(self._answered_s, self._began_call_s)
        self._store.ask(lambda: self._round(self._store.board, own, calls), _ROUND_S)
        is_lost = time.monotonic() - self._answered_s > _STORE_ANSWERS_S or self._store.is_gone()
        if is_lost:
            # Rank 0 may be who is stopped, and the store with it. This rank decides for itself, by
            # what it sees of its machine.
            from torch._C._distributed_c10d import HashStore

            self._round(Board(HashStore()), own, calls)

    def _round(self, board: Board, own: RankStatus, calls: bool) -> None:
        """Publish this rank's status, read the others', and decide if this is the deciding rank."""
        now_s = time.monotonic()
        self._others.begin_round()
        self._write_status(board, own)
        if calls and now_s - self._calls_s > _CALLS_EVERY_S:
            self._calls_s = now_s
            self._call = max(self._call, int(board.read([CALL])[0] or 0)) + 1
            board.write(CALL, str(self._call))
        self._decision.read(board)
        if self._decision.verdict:
            return
        self._others.read(board, now_s)
        if board is self._store.board:
            self._answered_s = time.monotonic()
        if self._others.report_silent(board, own):
            self._decision.decide(board, self._others.all)

    def _write_status(self, board: Board, status: RankStatus) -> None:
        self._number += 1
        board.write(seen(self._own.rank), replace(status, number=self._number).to_text())
