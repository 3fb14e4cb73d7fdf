"""Saving while training goes on."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
import weakref
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Literal

from core.checkpoint.copies.staging import StagingMemory
from core.checkpoint.distributed_io import DistributedCheckpointIO
from core.checkpoint.joint.agreement import together
from core.contract.checkpoint_io import CheckpointIO
from core.display import exit_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from core.contract.checkpoint_io import Collectives, PathLike


class AsyncCheckpointIO(CheckpointIO):
    """Another CheckpointIO, whose saves run in a thread while training goes on.

    A save copies the state, which takes memory for one copy of what this rank writes, kept for the
    next save, and returns. CUDA devices copy beside the forward and backward of the next step,
    whose optimizer waits for that. Saves, removals and loads come about in the order in which they
    were asked for: nothing is removed before what replaces it is there. One save is written at a
    time: the next one waits for it, and raises its error if it failed. `teardown` waits too, and so
    does the end of the interpreter. One that the program has let go of finishes what was asked for,
    and frees its memory and its thread. A save that fails then is a warning, and the process ends
    with another code than 0.
    """

    def __init__(
        self, checkpoint_io: CheckpointIO | None = None, *, during_forward: bool = True
    ) -> None:
        """Wrap a CheckpointIO.

        Args:
            checkpoint_io: what writes; None is `DistributedCheckpointIO()`.
            during_forward: let CUDA devices copy parameters, and the state of optimizers, while
                they compute the next step. Something else than the optimizer's step that changes
                them in that time calls `core.checkpoint.await_copies()` before; else the save is an
                error. False for devices that copy before they go on.
        """
        self._during_forward = during_forward
        self._pending: list[tuple[str, bool, Future[None]]] = []
        self.checkpoint_io = checkpoint_io or DistributedCheckpointIO()
        self._stage = StagingMemory()
        self._executor: ThreadPoolExecutor | None = None
        self._background: Collectives | None = None

    def __del__(self) -> None:
        """Warn of saves that failed: no caller is left to raise to. In a forked copy, nothing that
        is pending ends.
        """
        pending, self._pending = self._pending, []
        # A fork copies the list and not the thread: a future that isn't done there never will be.
        for _, _, future in pending:
            error = future.exception() if future.done() else None
            if error is not None:
                _warn_of_lost(error)
                exit_code.fail()

    @property
    def layout(self) -> Literal["full", "sharded"]:  # type: ignore[override]  # it is that of the other one
        """The layout of the CheckpointIO which writes."""
        return self.checkpoint_io.layout

    def save_checkpoint(
        self, state: dict[str, Any] | None, path: PathLike, *, collectives: Collectives
    ) -> None:
        """Copy `state`, and begin to write it to `path`.

        Raises:
            CheckpointError: the save before this one failed, or `state` can't be saved. Raised on
                all ranks.
            UnsupportedError: these ranks can't talk to each other in the background.
        """
        self._finish()
        background = self._in_background(collectives)

        def copy() -> dict[str, Any] | None:
            if state is None:
                return None
            stepped: Iterable[Tensor] = ()
            if self._during_forward and self.stepped_tensors is not None:
                stepped = self.stepped_tensors()
            is_sharded = self.layout == "sharded"
            return self._stage.copy(
                state, rank=collectives.rank, sharded=is_sharded, stepped=stepped
            )

        # Agreed on before anything is written: a rank that can't copy would leave the others
        # waiting in the background.
        staged = together(collectives, copy)
        stage = self._stage

        def write() -> None:
            # Agreed on here, too: a rank whose copy is none leaves no other waiting.
            together(background, stage.finish)
            self.checkpoint_io.save_checkpoint(staged, path, collectives=background)

        self._submit(path, True, write)

    def remove_checkpoint(self, path: PathLike, *, collectives: Collectives) -> None:
        """Delete the checkpoint at `path` when all that was asked for before is done.

        Raises:
            CheckpointError: as `save_checkpoint`; that it can't be deleted, at the next save.
        """
        background = self._in_background(collectives)
        remove = self.checkpoint_io.remove_checkpoint
        self._submit(path, False, lambda: remove(path, collectives=background))

    def retire_checkpoint(
        self, path: PathLike, successor: PathLike, *, collectives: Collectives
    ) -> None:
        """Delete the checkpoint at `path` when all that was asked for before is done, and
        `successor` verified.

        Raises:
            CheckpointError: as `remove_checkpoint`.
        """
        background = self._in_background(collectives)
        retire = self.checkpoint_io.retire_checkpoint
        self._submit(path, False, lambda: retire(path, successor, collectives=background))

    def find_damage(self, path: PathLike, *, collectives: Collectives) -> str | None:
        """All ranks. Look for damage of what is at `path` when all that was asked for before is
        done.
        """
        self._wait()
        return self.checkpoint_io.find_damage(path, collectives=collectives)

    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read what was saved at `path` when all that was asked for before is done."""
        self._wait()
        return self.checkpoint_io.load_checkpoint(path, collectives=collectives, state=state)

    def describe_checkpoint(
        self, path: PathLike, *, collectives: Collectives
    ) -> dict[str, Any] | None:
        """Describe what was saved at `path`, when all that was asked for before is done."""
        self._wait()
        return self.checkpoint_io.describe_checkpoint(path, collectives=collectives)

    def exists(self, path: PathLike) -> bool:
        """Rank 0. True if a complete checkpoint is at `path` once all that was asked for is
        done.
        """
        # The last thing that was asked for this path decides.
        for pending, will_exist, future in reversed(self._pending):
            if pending == os.fspath(path) and not future.done():
                return will_exist
        return self.checkpoint_io.exists(path)

    def verify_checkpoint(self, path: PathLike) -> None:
        """Rank 0. Verify what is at `path`, when all that was asked for before is done."""
        self._wait()
        self.checkpoint_io.verify_checkpoint(path)

    def teardown(self) -> None:
        """All ranks; idempotent. Finish what is still being written.

        Raises:
            CheckpointError: it failed. A warning, if another exception is ending the run.
        """
        # The exception that ends the run is the one to see; a lost save is often its consequence.
        is_failing = sys.exc_info()[0] is not None
        try:
            self._finish()
        except Exception as error:
            if not is_failing:
                raise
            _warn_of_lost(error)
        finally:
            if self._executor is not None:
                self._executor.shutdown()
            self._executor = self._background = None
            self._stage.close()
            self.checkpoint_io.teardown()

    def _in_background(self, collectives: Collectives) -> Collectives:
        if self._background is None:
            self._background = collectives.in_background()
        return self._background

    def _submit(self, path: PathLike, will_exist: bool, work: Callable[[], None]) -> None:
        if self._executor is None:
            # One thread keeps the order in which things were asked for.
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
            _at_work.add(self)
        self._pending.append((os.fspath(path), will_exist, self._executor.submit(work)))

    def _wait(self) -> None:
        wait([future for _, _, future in self._pending])

    def _finish(self) -> None:
        """Wait for all that was asked for, and raise the first error."""
        self._wait()
        finished, self._pending = self._pending, []
        for _, _, future in finished:
            future.result()


_at_work = weakref.WeakSet[AsyncCheckpointIO]()


@atexit.register
def _report_lost() -> None:
    """Report what nobody else has: the last cycles are collected when the code of the process is
    decided already.
    """
    for checkpoint_io in list(_at_work):
        checkpoint_io.__del__()


def _warn_of_lost(error: BaseException) -> None:
    warnings.warn(f"A checkpoint that was being written is lost: {error}", stacklevel=4)
