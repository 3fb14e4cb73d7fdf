"""The end of an epoch of unknown length, where ranks that are out of step would hang without a message."""

from __future__ import annotations

import logging
from threading import Timer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.contract import Strategy

WARNING_DELAY_S = 30.0


def await_others(strategy: Strategy, *, epoch: int, num_batches: int) -> None:
    """All ranks, where the training loader doesn't know its length. Wait for the others, and say so if it takes long.

    A rank that has more batches is waiting for this one's gradients, and nothing can call it back: the watch over ranks
    ends the run, or the process group's timeout where there is none.
    """
    if not strategy.session.has_peers:
        return
    message = (
        f"Rank {strategy.global_rank} has ended epoch {epoch} after {num_batches} batches, and has "
        f"been waiting for the other ranks for {WARNING_DELAY_S:.0f} s. If their shards of the data have more batches, "
        "they wait for this rank, until the watch over ranks or the process group's timeout ends the run. Give all "
        f"ranks as many batches, for example by limit_train_batches={num_batches}."
    )
    timer = Timer(WARNING_DELAY_S, logging.getLogger("core").warning, [message])
    timer.daemon = True
    timer.start()
    try:
        strategy.barrier("the end of an epoch")
    finally:
        timer.cancel()
