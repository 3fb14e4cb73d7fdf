"""The thread that watches one rank, and exchanges statuses with the other ranks' threads when nothing moves."""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from core.contract import HangError
from core.contract.awaited import Awaited, AwaitsRanks
from core.contract.whereabouts import Whereabouts
from core.launch.connections import StoreConnections
from core.watch import kernel
from core.watch.background_calls import BackgroundCalls
from core.watch.boards import CALL, VERDICT, Board, FolderBoard, StoreBoard
from core.watch.flight_recorder import Collective, newest, num_begun, numbered, oldest, run_on_device
from core.watch.local_ranks import LocalRanks, ask_for_stack, with_written_stack
from core.watch.native_abort import TerminateHandler
from core.watch.phases import heartbeat
from core.watch.rank_status import RankStatus
from core.watch.standstill import Standstill
from core.watch.standstill_warnings import StandstillWarnings
from core.watch.termination import SIGNAL, Termination, continue_process, end_by_force, leave_at_once
from core.watch.thread_sampler import ThreadSample, ThreadSampler
from core.watch.verdict import find

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from torch._C._distributed_c10d import Store

    from core.contract.world import World
    from core.watch.options import WatchdogOptions

_WAKE_S = 1.0
_LONGEST_PAUSE_S = 5.0
_CONFERS_S = 15.0
"""Seconds for which a rank keeps publishing its status after a call."""
_CALLS_EVERY_S = 5.0
_STORE_ANSWERS_S = 5.0
_PART_SURE = 3.0
"""Fraction of the limit after which a certain hang ends the run."""
_ABORTS_S = 20.0
"""Seconds for which aborting native code waits until the ranks have published which collective they called."""


class Watchdog:
    """Watches the thread that it is made in, until `close`.

    Attributes:
        pid: of the watched process.
        termination: raises the verdict.
    """

    def __init__(
        self, options: WatchdogOptions, store: Store, world: World, store_port: int, *, is_store_hosted: bool = False
    ) -> None:
        """All ranks.

        Args:
            options: the user's.
            store: this watch's own connection, to which ranks bring the same prefix.
            world: the ranks.
            store_port: where the store listens.
            is_store_hosted: it outlives the process of rank 0.
        """
        from torch._C._distributed_c10d import PrefixStore

        self.pid = os.getpid()
        self._options, self._rank, self._world_size = options, world.global_rank, world.world_size
        self._strategy = world if isinstance(world, AwaitsRanks) else None
        self._limit_s = options.limit.total_seconds()
        self._store, self._is_store_hosted = StoreBoard(PrefixStore("core/watch", store)), is_store_hosted
        self._store_connections = StoreConnections(store_port)
        self._folder: Path | None = None
        self._stacks: IO[str] | None = None
        self._host, self._machine, self._began = socket.gethostname(), kernel.machine(), kernel.began_at(self.pid)
        # Healthy ranks look for a call less often than they look at themselves.
        self._looks_every = max(1, round(min(self._limit_s / 6, _LONGEST_PAUSE_S) / _WAKE_S))
        heartbeat.begin()
        self._standstill = Standstill(heartbeat, self._limit_s, options.end_after.total_seconds())
        self._watched = threading.get_ident()
        self._sampler = ThreadSampler(self._watched, threading.get_native_id(), world.waits_in)
        self._local_ranks = LocalRanks(max(options.limit, options.end_after).total_seconds())
        self._collective: tuple[int, str, Collective] = (-1, "", Collective())
        self._number = self._num_wakes = self._num_rounds = self._call = 0
        self._called_s = self._began_call_s = self._calls_s = self._answered_s = -1e9
        self._call_began_round = 0
        self._others: dict[int, tuple[int, int, float]] = {}
        """By rank: the number of its last status, and the round and the time at which that was read."""
        self._statuses: dict[int, RankStatus] = {}
        self._suspicion: tuple[object, ...] = ()
        self._verdict, self._num_verdicts = "", 0
        self._warnings = StandstillWarnings(options)
        self.termination = Termination(store_port, self._ask)
        self._has_enabled = False
        self._is_aborting, self._is_shown = False, threading.Event()
        self._is_closed = threading.Event()
        self._store_calls = BackgroundCalls("watch over ranks: store")
        self._terminate = TerminateHandler(self._hold)
        self._thread = threading.Thread(target=self._run, name="watch over ranks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching, and publish to the other ranks that this one has left."""
        self._is_closed.set()
        self.allow_abort()
        self._is_shown.set()
        left = replace(self._named("left"), number=self._number + 1)
        # After an error the store may be gone, and torch prints a page about that.
        if not self.termination.is_over and sys.exception() is None:
            self._ask_store(lambda: self._store.write(self._seen(), left.to_text()), _WAKE_S)
        self._store_calls.close(_WAKE_S)
        if self._thread is not threading.current_thread():
            self._thread.join(_WAKE_S)
        if not self.termination.is_over and sys.exception() is None:  # a run that ends has gone on
            self._warnings.clear(self._standstill.since_s)
        self._remove_files()
        self.termination.close()

    def allow_abort(self) -> None:
        """Stop intercepting `std::terminate`: native code that aborts ends the process at once."""
        self._terminate.close()

    # the thread -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._store_calls.run(self._enter, _WAKE_S)
        self._sampler.leave_out(self._thread, self._store_calls.thread)
        while not self._is_closed.wait(_WAKE_S):
            self._wake()
            if self._verdict:
                self._is_shown.set()
                if self._options.ends_run:
                    self._end()
                    return

    def _hold(self) -> None:
        """Called in a thread of native code that is about to end the process: waits until the ranks know why."""
        self._is_aborting = True
        self._is_shown.wait(_ABORTS_S)
        if self._verdict and self._options.ends_run:
            self._is_closed.wait(_ABORTS_S)  # the watch ends the process, with the verdict

    def _enter(self) -> None:
        """Publish this rank's host and process, and read those of rank 0, with which the store may be lost."""
        # If native code aborts without a verdict, the stack is the only trace.
        if not faulthandler.is_enabled():
            with suppress(AttributeError, OSError, RuntimeError, ValueError):  # a stderr that is no file
                faulthandler.enable()
                self._has_enabled = True
        self._stacks = _open_in_memory()
        faulthandler.register(SIGNAL, self._stacks, all_threads=True, chain=True)
        own = self._named("computes")
        self._write_status(self._store, own)
        if self._rank == 0:
            self._store.write("run", json.dumps([uuid.uuid4().hex, own.to_text()]))
        while not (text := self._store.read(["run"])[0]):
            time.sleep(0.05)
        run, first = json.loads(text)
        self._statuses.setdefault(0, RankStatus.from_text(first))
        self._folder = Path(tempfile.gettempdir(), f"core-watch-{run}")

    def _wake(self) -> None:
        stood_s = self._standstill.since_s
        since_s, now_s = self._standstill.look(num_begun()), time.monotonic()
        self._num_wakes += 1
        if not since_s:
            self._warnings.clear(stood_s)
        if since_s > max(_WAKE_S, min(_LONGEST_PAUSE_S, self._limit_s / 2)) or self._is_aborting:
            self._be_called(now_s)
        is_called = now_s - self._called_s < _CONFERS_S
        if since_s or is_called:
            statuses = [*self._statuses.values()]  # another thread may add to it
            sample = self._sampler.sample({each.pid for each in statuses if each.machine == self._machine})
            self._standstill.note(is_waiting=sample.state == "waits", is_at_work=sample.is_at_work)
            if is_called:
                self._confer(self._status_now(sample), calls=self._called_s == now_s)
        if not is_called and self._num_wakes % self._looks_every == 0:
            self._ask_store(self._listen, _WAKE_S / 4)

    def _ask_store(self, function: Callable[[], None], timeout_s: float) -> bool:
        """Run a function that asks the store; False if there is no answer yet, or the store is gone."""
        return not self._is_store_gone() and self._store_calls.run(function, timeout_s)

    def _is_store_gone(self) -> bool:
        """True if it has ended, with the process of rank 0 or before: torch would print a page about the connection."""
        return (not self._is_store_hosted and self._is_gone(0)) or self._store_connections.are_hung_up()

    def _is_gone(self, rank: int) -> bool:
        """True if the process of a rank of this machine has ended."""
        last = self._statuses.get(rank)
        return last is not None and last.machine == self._machine and kernel.is_gone(last.pid, last.began)

    def _listen(self) -> None:
        """Check for a call or a verdict of another rank."""
        call = int(self._store.read([CALL])[0] or 0)
        if call > self._call:
            self._call = call
            self._be_called(time.monotonic() - 1e-3)
        self._read_verdict(self._store)

    def _be_called(self, now_s: float) -> None:
        if now_s - self._called_s > _CONFERS_S:
            self._began_call_s, self._call_began_round = now_s, self._num_rounds
        self._called_s = max(self._called_s, now_s)

    def _status_now(self, sample: ThreadSample) -> RankStatus:
        state = "debugged" if sys.gettrace() is not None else sample.state
        aborting = [each for each in self._statuses.values() if each.state == "aborts"]
        call = min(aborting, key=lambda each: each.rank).call if aborting else ""
        recorded, line = Collective(), sample.line
        if self._is_aborting or call:
            with suppress(Exception):  # what torch records is for debugging, and differs between releases
                recorded = numbered(call) if call else oldest()
            state, call = "aborts" if self._is_aborting else state, recorded.number or call
            line = recorded.line or line
        elif state == "waits" or (self._standstill.since_s > _WAKE_S and run_on_device()):
            # Reading torch's record takes a while, and it doesn't change while the rank stands still.
            if self._collective[:2] != (heartbeat.count, sample.line):
                with suppress(Exception):  # what torch records is for debugging, and differs between releases
                    self._collective = (heartbeat.count, sample.line, newest())
            recorded = self._collective[2]
            state = "waits" if recorded.name and state != "debugged" else state
        end_after_s, awaited = self._standstill.end_after_s, self._awaited() if state == "waits" else Awaited("", ())
        return replace(
            self._named(state),
            phase=heartbeat.phase,
            line=line,
            since_s=self._standstill.since_s,
            warn_after_s=self._standstill.warn_after_s,
            end_after_s=end_after_s,
            least_s=end_after_s if sample.is_moving else self._limit_s / _PART_SURE,
            collective=recorded.name,
            awaits=awaited.what,
            awaited_ranks=awaited.ranks,
            is_usual=recorded.is_usual,
            call=call,
            count=heartbeat.count,
            stack=self._sampler.stack(),
        )

    def _awaited(self) -> Awaited:
        """The messages for which this rank waits, if its strategy knows that."""
        with suppress(Exception):  # another thread of it is at work
            if self._strategy is not None and (found := self._strategy.awaited()) is not None:
                ranks = ", ".join(map(str, found.ranks))
                return replace(found, what=f"{found.what}, of rank{'s' * (len(found.ranks) > 1)} {ranks}")
        return Awaited("", ())

    def _named(self, state: str) -> RankStatus:
        """A status that only identifies this process."""
        return RankStatus(
            self._rank,
            state,
            least_s=self._limit_s / _PART_SURE,
            host=self._host,
            machine=self._machine,
            pid=self.pid,
            thread=self._watched,
            watcher=self._thread.native_id or 0,
            began=self._began,
            stacks=self._path(),
        )

    # conferring -----------------------------------------------------------------------------------------------------

    def _confer(self, own: RankStatus, *, calls: bool) -> None:
        self._answered_s = max(self._answered_s, self._began_call_s)  # a new call: the store has all its time
        self._ask_store(lambda: self._round(self._store, own, calls), _WAKE_S / 2)
        is_lost = time.monotonic() - self._answered_s > _STORE_ANSWERS_S or self._is_store_gone()
        if is_lost and self._folder is not None:
            # Rank 0 may be who is stopped, and the store with it: those of one machine go on.
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._round(FolderBoard(self._folder), own, calls)

    def _round(self, board: Board, own: RankStatus, calls: bool) -> None:
        """Publish this rank's status, read the others', and decide if this is the deciding rank."""
        now_s = time.monotonic()
        self._num_rounds += 1
        self._write_status(board, own)
        if calls and now_s - self._calls_s > _CALLS_EVERY_S:
            self._calls_s = now_s
            self._call = max(self._call, int(board.read([CALL])[0] or 0)) + 1
            board.write(CALL, str(self._call))
        self._read_verdict(board)
        if self._verdict:
            return
        self._read_statuses(board, now_s)
        if board is self._store:
            self._answered_s = time.monotonic()
        silent = [rank for rank in range(self._world_size) if self._is_silent(rank)]
        for rank in silent:
            self._report_silent(board, rank, own)
        if len(self._statuses) == self._world_size and self._rank == min(
            (rank for rank, each in self._statuses.items() if rank not in silent and not each.is_lost), default=-1
        ):
            self._decide(board)

    def _read_verdict(self, board: Board) -> None:
        """Read the verdict from the board, or from the folder if the board's server was stopped."""
        boards = [board] if self._folder is None else [board, FolderBoard(self._folder)]
        for each in boards:
            while text := each.read([self._verdict_name()])[0]:
                self._verdict = text
                self._num_verdicts += 1

    def _write_status(self, board: Board, status: RankStatus) -> None:
        self._number += 1
        board.write(self._seen(), replace(status, number=self._number, began=self._began).to_text())

    def _read_statuses(self, board: Board, now_s: float) -> None:
        texts = board.read([self._seen(rank) for rank in range(self._world_size)])
        for rank, text in enumerate(texts):
            if not text:
                continue
            status = RankStatus.from_text(text)
            number, _, heard_s = self._others.get(rank, (-1, 0, 0.0))
            if status.number != number:
                self._others[rank] = status.number, self._num_rounds, now_s
                self._statuses[rank] = status
                self._local_ranks.forget(rank)
            elif status.state == "left":
                self._statuses[rank] = replace(status.lost("left"), since_s=now_s - heard_s)

    def _is_silent(self, rank: int) -> bool:
        """True if a rank has published no status since the call began, though it had the time."""
        if rank == self._rank or (rank in self._statuses and self._statuses[rank].state == "left"):
            return False
        heard = max(self._others.get(rank, (0, 0, 0.0))[1], self._call_began_round)
        return self._is_gone(rank) or self._num_rounds - heard > self._looks_every + 2

    def _report_silent(self, board: Board, rank: int, own: RankStatus) -> None:
        """Publish the status of a silent rank: from `/proc` on this machine, else as a rank of its own reports it."""
        last = self._statuses.get(rank)
        if last is None:
            return
        if last.machine != self._machine:
            said = board.read([f"peer/{rank}"])[0]
            # Where no rank can look, it may be at work.
            end_after_s = self._local_ranks.longest_s
            seen = replace(last, state="silent", warn_after_s=own.warn_after_s, end_after_s=end_after_s)
            seen = RankStatus.from_text(said) if said else seen
        else:
            seen = self._local_ranks.examine(last, own)
            board.write(f"peer/{rank}", seen.to_text())
        self._statuses[rank] = replace(seen, since_s=max(seen.since_s, own.since_s))

    def _decide(self, board: Board) -> None:
        statuses = [self._statuses[rank] for rank in range(self._world_size)]
        verdict = find(statuses)
        # Statuses are up to a second old: a verdict counts when it is found twice.
        before, self._suspicion = self._suspicion, ()
        if verdict is not None:
            self._suspicion = (verdict.absent, verdict.ends, *(each.count for each in statuses))
        if verdict is None or before != self._suspicion:
            return
        if not verdict.ends or not (self._options.ends_run or verdict.is_abort):
            self._warnings.warn(verdict, statuses)
        elif board.is_first_to_decide(self._num_verdicts):
            shown = [self._asked_to_show(each) for each in statuses]
            error = self._warnings.error(find(shown) or verdict, shown)
            self._verdict = json.dumps(
                {
                    "message": error.args[0],
                    "absent": error.absent,
                    "ranks": [asdict(each) for each in error.ranks],
                    "stacks_path": error.stacks_path,
                }
            )
            board.write(self._verdict_name(), self._verdict)

    def _asked_to_show(self, status: RankStatus) -> RankStatus:
        """The status with the stack of a stopped process, which can write it only while it runs."""
        if status.state != "stopped" or status.machine != self._machine or not self._options.ends_run:
            return status
        with suppress(OSError):
            ask_for_stack(status)
            continue_process(status.pid, status.began)
            time.sleep(_WAKE_S / 4)
            os.kill(status.pid, signal.SIGSTOP)  # so that it does no step of its own before it reads the verdict
        return with_written_stack(status)

    # the verdict ----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """End this process by the verdict, and the absent processes of this machine."""
        error = self.termination.error or self._error()
        if self._is_aborting:
            self._await_others(error)
            self._remove_files()
            leave_at_once(error)
        leads = self._leads_machine(error)
        if leads:
            self._for_each_absent(error, continue_process)
        self.termination.end(error, self._options.grace.total_seconds())
        if leads:
            self._for_each_absent(error, end_by_force)
        if not self._is_closed.is_set():
            self._remove_files()
            leave_at_once(error)

    def _await_others(self, error: HangError) -> None:
        """Wait until the others have ended with the verdict: this process breaks their connections when it ends."""
        ends_s = time.monotonic() + self._options.grace.total_seconds()
        others = [each for each in error.ranks if each.state not in ("aborts", "gone", "left")]
        while time.monotonic() < ends_s and any(
            each.host != self._host or kernel.process_state(each.pid) not in ("Z", "") for each in others
        ):
            time.sleep(_WAKE_S / 4)

    def _error(self) -> HangError:
        said = json.loads(self._verdict)
        ranks = [Whereabouts(**each) for each in said["ranks"]]
        return HangError(said["message"], absent=said["absent"], ranks=ranks, stacks_path=said["stacks_path"])

    def _ask(self) -> None:
        """Called in the watched thread after a lost connection: fetch the verdict, if another rank has decided."""
        if not self._options.ends_run:
            return
        if not self._verdict:
            self._ask_store(self._listen, _WAKE_S)
        if self._verdict:
            self.termination.error = self.termination.error or self._error()

    def _leads_machine(self, error: HangError) -> bool:
        own = [each.rank for each in error.ranks if each.host == self._host and each.rank not in error.absent]
        return not own or min(own) == self._rank

    def _for_each_absent(self, error: HangError, act: object) -> None:
        assert callable(act)
        for each in error.ranks:
            if each.rank in error.absent and each.host == self._host and each.pid != self.pid:
                status = self._statuses.get(each.rank)
                with suppress(OSError):
                    act(each.pid, status.began if status is not None else "")

    def _remove_files(self) -> None:
        faulthandler.unregister(SIGNAL)
        if self._has_enabled:
            faulthandler.disable()
        if self._stacks is not None:
            self._stacks.close()
            self._stacks = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _verdict_name(self) -> str:
        return f"{VERDICT}/{self._num_verdicts}"

    def _seen(self, rank: int | None = None) -> str:
        return f"seen/{self._rank if rank is None else rank}"

    def _path(self) -> str:
        return f"/proc/{self.pid}/fd/{self._stacks.fileno()}" if self._stacks is not None else ""


def _open_in_memory() -> IO[str]:
    """An anonymous file in memory, which vanishes with the process."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("core-watch"), "w")
    return tempfile.TemporaryFile("w")
