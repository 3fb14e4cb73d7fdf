"""The thread that watches one rank, and confers with those of the others when nothing moves."""

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
from core.contract.whereabouts import Whereabouts
from core.watch.account import Account
from core.watch.adaptive_timeout import AdaptiveTimeout
from core.watch.board import CALL, VERDICT, Board, FolderBoard, StoreBoard
from core.watch.ending import SIGNAL, Ending, end_by_force, leave_at_once, let_go_on
from core.watch.errand import Errands
from core.watch.looking import Eye, Sight, began_at, num_collectives, process_state, waits_on_device
from core.watch.progress import pulse
from core.watch.recorded import Collective, newest, numbered, oldest
from core.watch.terminate import TerminateHandler
from core.watch.verdict import Verdict, find, table

if TYPE_CHECKING:
    from typing import IO

    from torch._C._distributed_c10d import Store

    from core.contract.world import World
    from core.watch.options import Watch

_WAKE_S = 1.0
_LONGEST_PAUSE_S = 5.0
_CONFERS_S = 15.0
"""Seconds for which a rank goes on to tell of itself after it was called."""
_CALLS_EVERY_S = 5.0
_STORE_ANSWERS_S = 5.0
_ABORTS_S = 20.0
"""Seconds for which native code that gives up waits for the ranks to say what they called."""


class Watching:
    """Watches the thread that it is made in, until `close`.

    Attributes:
        pid: of the watched process.
        ending: raises the verdict.
    """

    def __init__(self, options: Watch, store: Store, world: World, store_port: int) -> None:
        """All ranks. `store` is this watch's own connection, to which ranks bring the same prefix."""
        from torch._C._distributed_c10d import PrefixStore

        self.pid = os.getpid()
        self._options, self._rank, self._world_size = options, world.global_rank, world.world_size
        self._limit_s = options.limit.total_seconds()
        self._store = StoreBoard(PrefixStore("core/watch", store))
        self._folder: Path | None = None
        self._stacks: IO[str] | None = None
        self._host = socket.gethostname()
        self._began = began_at(self.pid)
        # Healthy ranks look for a call less often than they look at themselves.
        self._looks_every = max(1, round(min(self._limit_s / 6, _LONGEST_PAUSE_S) / _WAKE_S))
        self._silence_s = self._looks_every * _WAKE_S + 3 * _WAKE_S
        pulse.begin()
        self._timeout = AdaptiveTimeout(pulse, self._limit_s)
        self._eye = Eye(threading.get_ident(), threading.get_native_id(), world.waits_in)
        self._collective: tuple[int, str, Collective] = (-1, "", Collective())
        self._number = self._num_wakes = self._call = 0
        self._called_s = self._began_call_s = self._calls_s = self._answered_s = -1e9
        self._others: dict[int, tuple[int, float]] = {}
        self._accounts: dict[int, Account] = {}
        self._suspicion: tuple[object, ...] = ()
        self._verdict, self._num_verdicts = "", 0
        self._is_reported = self._is_told = False
        self.ending = Ending(store_port, self._ask)
        self._has_enabled = False
        self._is_aborting, self._is_shown = False, threading.Event()
        self._is_closed = threading.Event()
        self._errands = Errands("watch over ranks: store")
        self._terminate = TerminateHandler(self._hold)
        self._thread = threading.Thread(target=self._run, name="watch over ranks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no more. The others are told."""
        self._is_closed.set()
        self.let_abort()
        self._is_shown.set()
        left = Account(self._rank, "left", host=self._host, pid=self.pid, number=self._number + 1)
        # After an error the store may be gone, and torch prints a page about that.
        if not self.ending.is_over and sys.exception() is None:
            self._errands.run(lambda: self._store.write(self._seen(), left.to_text()), _WAKE_S)
        self._errands.close(_WAKE_S)
        if self._thread is not threading.current_thread():
            self._thread.join(_WAKE_S)
        self._remove_files()
        self.ending.close()

    def let_abort(self) -> None:
        """Tell nothing any more of native code that gives up."""
        self._terminate.close()

    # the thread -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._errands.run(self._enter, _WAKE_S)
        while not self._is_closed.wait(_WAKE_S):
            self._wake()
            if self._verdict and not self._is_reported:
                self._is_reported = True
                self._is_shown.set()
                if self._options.ends_run:
                    self._end()
                    return

    def _hold(self) -> None:
        """In a thread of native code, which is about to end the process: let the ranks find out why before."""
        self._is_aborting = True
        self._is_shown.wait(_ABORTS_S)
        if self._verdict and self._options.ends_run:
            self._is_closed.wait(_ABORTS_S)  # the watch ends the process, with the verdict

    def _enter(self) -> None:
        """Say where this rank is, and learn where rank 0 is, with which the store may be lost."""
        # Where there is no verdict on what native code gives up about, the stack is all that is left.
        if not faulthandler.is_enabled():
            with suppress(AttributeError, OSError, RuntimeError, ValueError):  # a stderr that is no file
                faulthandler.enable()
                self._has_enabled = True
        self._stacks = _open_in_memory()
        faulthandler.register(SIGNAL, self._stacks, all_threads=True, chain=True)
        own = Account(self._rank, "computes", host=self._host, pid=self.pid, began=self._began, stacks=self._path())
        self._write_account(self._store, own)
        if self._rank == 0:
            self._store.write("run", json.dumps([uuid.uuid4().hex, own.to_text()]))
        while not (text := self._store.read(["run"])[0]):
            time.sleep(0.05)
        run, first = json.loads(text)
        self._accounts.setdefault(0, Account.from_text(first))
        self._folder = Path(tempfile.gettempdir(), f"core-watch-{run}")

    def _wake(self) -> None:
        sight, now_s = self._eye.look(), time.monotonic()
        since_s = self._timeout.look(num_collectives(), is_waiting=sight.state == "waits")
        self._num_wakes += 1
        if self._is_reported and since_s < _WAKE_S:  # the run goes on after all
            self._verdict, self._is_reported = "", False
        if since_s < _WAKE_S:
            self._is_told = False
        is_late = since_s > max(_WAKE_S, min(_LONGEST_PAUSE_S, self._limit_s / 2))
        if (is_late or self._is_aborting) and not self._is_reported:
            if now_s - self._called_s > _CONFERS_S:
                self._began_call_s = now_s
            self._called_s = now_s
        if now_s - self._called_s < _CONFERS_S:
            self._confer(self._account_now(sight, since_s), calls=self._called_s == now_s)
        elif self._num_wakes % self._looks_every == 0:
            self._errands.run(self._listen, _WAKE_S / 4)

    def _listen(self) -> None:
        """Look whether another rank calls."""
        self._hear(int(self._store.read([CALL])[0] or 0))
        self._read_verdict(self._store)

    def _hear(self, call: int) -> None:
        if call > self._call:
            self._call, now_s = call, time.monotonic()
            if now_s - self._called_s > _CONFERS_S:
                self._began_call_s = now_s
            self._called_s = max(self._called_s, now_s - 1e-3)

    def _account_now(self, sight: Sight, since_s: float) -> Account:
        state = "debugged" if sys.gettrace() is not None else sight.state
        aborting = [each for each in self._accounts.values() if each.state == "aborts"]
        call = min(aborting, key=lambda each: each.rank).call if aborting else ""
        recorded, line = Collective(), sight.line
        if self._is_aborting or call:
            with suppress(Exception):  # what torch records is for debugging, and differs between releases
                recorded = numbered(call) if call else oldest()
            state, call = "aborts" if self._is_aborting else state, recorded.number or call
            line = recorded.line or line
        elif state == "waits" or (since_s > _WAKE_S and waits_on_device()):
            # Reading torch's record takes a while, and it doesn't change while the rank stands still.
            if self._collective[:2] != (pulse.count, sight.line):
                with suppress(Exception):  # what torch records is for debugging, and differs between releases
                    self._collective = (pulse.count, sight.line, newest())
            recorded = self._collective[2]
            state = "waits" if recorded.name and state != "debugged" else state
        at_work = state in ("computes", "works") or (state == "waits" and sight.is_moving)
        return Account(
            self._rank,
            state,
            pulse.phase,
            line,
            since_s,
            self._timeout.allowed_s(is_at_work=at_work),
            self._timeout.least_s(is_moving=sight.is_moving),
            recorded.name,
            recorded.is_usual,
            call,
            pulse.count,
            self._host,
            self.pid,
            self._eye.stack(),
            began=self._began,
            stacks=self._path(),
        )

    # conferring -----------------------------------------------------------------------------------------------------

    def _confer(self, own: Account, *, calls: bool) -> None:
        begun_s = time.monotonic()
        if begun_s - self._began_call_s < _WAKE_S:
            self._answered_s = begun_s  # a new call: the store has all its time
        if self._errands.run(lambda: self._round(self._store, own, calls), _WAKE_S / 2):
            self._answered_s = time.monotonic()
        elif time.monotonic() - self._answered_s > _STORE_ANSWERS_S and self._folder is not None:
            # Rank 0 may be who is stopped, and the store with it: those of one machine go on.
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._round(FolderBoard(self._folder), own, calls)

    def _round(self, board: Board, own: Account, calls: bool) -> None:
        """Tell of this rank, hear of the others, and decide if that is this rank's part."""
        now_s = time.monotonic()
        self._write_account(board, own)
        if calls and now_s - self._calls_s > _CALLS_EVERY_S:
            self._calls_s = now_s
            self._call = max(self._call, int(board.read([CALL])[0] or 0)) + 1
            board.write(CALL, str(self._call))
        self._read_verdict(board)
        if self._verdict:
            return
        self._read_accounts(board, now_s)
        silent = [rank for rank in range(self._world_size) if self._is_silent(rank, now_s)]
        answering = [rank for rank in range(self._world_size) if rank not in silent]
        for rank in silent:
            self._speak_for(board, rank, own)
        if answering and answering[0] == self._rank and len(self._accounts) == self._world_size:
            self._decide(board)

    def _read_verdict(self, board: Board) -> None:
        """Look on the board, and in the folder, where it is written if the board's server was stopped."""
        boards = [board] if self._folder is None else [board, FolderBoard(self._folder)]
        for each in boards:
            while text := each.read([self._verdict_name()])[0]:
                self._verdict = text
                self._num_verdicts += 1

    def _write_account(self, board: Board, account: Account) -> None:
        self._number += 1
        board.write(self._seen(), replace(account, number=self._number, began=self._began).to_text())

    def _read_accounts(self, board: Board, now_s: float) -> None:
        texts = board.read([self._seen(rank) for rank in range(self._world_size)])
        for rank, text in enumerate(texts):
            if not text:
                continue
            account = Account.from_text(text)
            number, _ = self._others.get(rank, (-1, 0.0))
            if account.number != number:
                self._others[rank] = account.number, now_s
                self._accounts[rank] = account
            elif account.state == "left":
                self._accounts[rank] = replace(account, since_s=now_s - self._others[rank][1], allowed_s=self._limit_s)

    def _is_silent(self, rank: int, now_s: float) -> bool:
        """True if a rank hasn't told of itself since the ranks have begun to confer, though it had the time."""
        if rank == self._rank or (rank in self._accounts and self._accounts[rank].state == "left"):
            return False
        heard_s = max(self._others.get(rank, (0, -1e9))[1], self._began_call_s)
        return now_s - heard_s > self._silence_s

    def _speak_for(self, board: Board, rank: int, own: Account) -> None:
        """Tell of a rank that doesn't: of this machine, from what the kernel says; else what others say of it."""
        last = self._accounts.get(rank)
        if last is None:
            return
        if last.host != self._host:
            said = board.read([f"peer/{rank}"])[0]
            seen = Account.from_text(said) if said else replace(last, state="silent", allowed_s=own.allowed_s * 10)
        else:
            seen = self._look_at(last, own)
            board.write(f"peer/{rank}", seen.to_text())
        self._accounts[rank] = replace(seen, since_s=max(seen.since_s, own.since_s))

    def _look_at(self, last: Account, own: Account) -> Account:
        kernel = process_state(last.pid)
        if kernel in ("Z", "X") or (last.began and began_at(last.pid) != last.began):
            return replace(last, state="gone", allowed_s=self._limit_s)
        if kernel in ("T", "t"):
            # The others wait where it is; what it has said itself may be old.
            return replace(last, state="stopped", allowed_s=self._limit_s, phase=own.phase)
        # It holds Python's lock in native code. faulthandler writes its stack without that lock.
        with suppress(OSError):
            os.kill(last.pid, SIGNAL)
        seen = self._with_written_stack(last)
        return replace(seen, state="computes" if kernel == "R" else "silent", allowed_s=own.allowed_s * 10)

    def _with_written_stack(self, last: Account) -> Account:
        from core.watch.written_stack import line_in

        text = ""
        with suppress(OSError):
            text = Path(last.stacks).read_text(errors="replace")
        return replace(last, stack=text, line=line_in(text) or last.line) if text else last

    def _decide(self, board: Board) -> None:
        accounts = [self._accounts[rank] for rank in range(self._world_size)]
        verdict = find(accounts)
        # Accounts are up to a second old: only what is so twice is so.
        before, self._suspicion = self._suspicion, ()
        if verdict is not None:
            self._suspicion = (verdict.absent, *(each.count for each in accounts))
        if verdict is None or before != self._suspicion:
            return
        if not verdict.absent:
            self._tell_once(verdict, accounts)
            return
        if not board.is_first_to_decide(self._num_verdicts):
            return
        shown = [self._asked_to_show(each) for each in accounts]
        self._verdict = self._publish(board, find(shown) or verdict, shown)

    def _asked_to_show(self, account: Account) -> Account:
        """A stopped process shows its stack as soon as it goes on, and it is about to be ended."""
        if account.state != "stopped" or account.host != self._host or not self._options.ends_run:
            return account
        with suppress(OSError):
            os.kill(account.pid, SIGNAL)
            let_go_on(account.pid, account.began)
            time.sleep(_WAKE_S / 4)
            os.kill(account.pid, signal.SIGSTOP)  # so that it does no step of its own before it hears of the verdict
        return self._with_written_stack(account)

    # the verdict ----------------------------------------------------------------------------------------------------

    def _tell_once(self, verdict: Verdict, accounts: list[Account]) -> None:
        """Say on this rank that all stand still, once until it comes forward."""
        if not self._is_told:
            self._is_told = True
            sys.stderr.write(f"core: {self._describe(verdict, accounts)[0]}")
            sys.stderr.flush()

    def _publish(self, board: Board, verdict: Verdict, accounts: list[Account]) -> str:
        error = self._make_error(verdict, accounts)
        text = json.dumps(
            {
                "message": error.args[0],
                "absent": error.absent,
                "ranks": [asdict(each) for each in error.ranks],
                "report": error.report,
            }
        )
        board.write(self._verdict_name(), text)
        # Where the run ends, its error says the rest.
        said = str(error).partition("\n")[0] if self._options.ends_run else str(error)
        sys.stderr.write(f"core: {said}\n")
        sys.stderr.flush()
        return text

    def _make_error(self, verdict: Verdict, accounts: list[Account]) -> HangError:
        whereabouts = [each.whereabouts() for each in accounts]
        message, report = self._describe(verdict, accounts)
        if verdict.is_abort:
            return HangError(message, absent=verdict.absent, ranks=whereabouts, report=report)
        message += (
            "If this was merely slow, allow more: watch=Watch(limit=timedelta(minutes=5)), or CORE_WATCH=300; "
            "CORE_WATCH=report lets the run go on, CORE_WATCH=off looks at nothing."
        )
        return HangError(message, absent=verdict.absent, ranks=whereabouts, report=report)

    def _describe(self, verdict: Verdict, accounts: list[Account]) -> tuple[str, str]:
        """The message: the state of all ranks, and the file with their stacks; and the path of that file."""
        waited_s = max(each.since_s for each in accounts)
        waited = "" if verdict.is_abort else f"The ranks have not come forward for {waited_s:.0f} s. "
        message = f"{waited}{verdict.reason[:1].upper()}{verdict.reason[1:]}.\n{table(accounts)}\n"
        report = self._write_report(message, accounts)
        return message + (f"All stacks: {report}\n" if report else ""), report

    def _write_report(self, message: str, accounts: list[Account]) -> str:
        folder = Path(self._options.folder or tempfile.gettempdir())
        path = folder / f"core-hang-{time.strftime('%Y%m%d-%H%M%S')}-{self.pid}.txt"
        stacks = "".join(
            f"\nrank {each.rank} on {each.host}, process {each.pid}, {each.state}:\n{each.stack}" for each in accounts
        )
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(message + stacks)
            return str(path)
        return ""

    def _end(self) -> None:
        """End this process by the verdict, and those of this machine that don't come."""
        error = self.ending.error or self._error()
        if self._is_aborting:
            self._await_others(error)
            self._remove_files()
            leave_at_once(error)
        leads = self._leads_machine(error)
        if leads:
            self._for_each_absent(error, let_go_on)
        self.ending.end(error, self._options.grace.total_seconds())
        if leads:
            self._for_each_absent(error, end_by_force)
        if not self._is_closed.is_set():
            self._remove_files()
            leave_at_once(error)

    def _await_others(self, error: HangError) -> None:
        """Let the others end with the verdict before this process breaks their connections, and is seen to fail."""
        ends_s = time.monotonic() + self._options.grace.total_seconds()
        others = [each for each in error.ranks if each.state not in ("aborts", "gone", "left")]
        while time.monotonic() < ends_s and any(
            each.host != self._host or process_state(each.pid) not in ("Z", "") for each in others
        ):
            time.sleep(_WAKE_S / 4)

    def _error(self) -> HangError:
        said = json.loads(self._verdict)
        ranks = [Whereabouts(**each) for each in said["ranks"]]
        return HangError(said["message"], absent=said["absent"], ranks=ranks, report=said["report"])

    def _ask(self) -> None:
        """In the watched thread, when a connection was lost: the verdict, if another rank has come to one."""
        if not self._options.ends_run:
            return
        if not self._verdict:
            self._errands.run(self._listen, _WAKE_S)
        if self._verdict:
            self.ending.error = self.ending.error or self._error()

    def _leads_machine(self, error: HangError) -> bool:
        own = [each.rank for each in error.ranks if each.host == self._host and each.rank not in error.absent]
        return not own or min(own) == self._rank

    def _for_each_absent(self, error: HangError, act: object) -> None:
        assert callable(act)
        for each in error.ranks:
            if each.rank in error.absent and each.host == self._host and each.pid != self.pid:
                account = self._accounts.get(each.rank)
                with suppress(OSError):
                    act(each.pid, account.began if account is not None else "")

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
    """A file without a name: nothing of it is left, however the process ends."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("core-watch"), "w")
    return tempfile.TemporaryFile("w")
