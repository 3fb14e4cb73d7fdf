"""Departure of a process from a round, wherever it stands, when a rank is lost."""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import signal
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

from core.contract import HangError
from core_resilience.microbatch import next_number

if TYPE_CHECKING:
    from types import FrameType

    from core_resilience.in_place.line import MessageLine

_CALL = signal.SIGRTMIN + 7
"""The signal by which the thread that listens calls the main thread; nobody else uses it."""
_AGAIN_S = 0.5
"""Seconds after which a main thread that hasn't left is called again; its store's connections are
broken off then.
"""
_IMPORTED_S = 10.0
"""Seconds after which a script has imported what it needs."""
_CAUSE_S = 10.0
"""Seconds in which the launcher says that a rank is lost, after a connection to it is."""
_OTHER_CAUSE_S = 1.0
"""Seconds for it after an error that doesn't look like one of those."""


class LostRankError(BaseException):
    """Ends the script's round, as KeyboardInterrupt ends a program: a rank is lost, and the others
    meet again.
    """


class Departure:
    """Hears from the launcher in a thread of its own, and breaks off what the main thread waits
    for.

    Args:
        line: to the launcher.
    """

    def __init__(self, line: MessageLine) -> None:
        self.line = line
        self._inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._leaves, self._has_left = threading.Event(), threading.Event()  # of the newest round
        self._lock = threading.Lock()  # a call to leave comes before the script's end, or after it
        self._is_inside = False
        self._store_port = 0
        self._breaks_off: threading.Thread | None = None
        signal.signal(_CALL, self._on_call)
        pid = os.getpid()
        os.register_at_fork(after_in_child=lambda: signal.signal(_CALL, signal.SIG_IGN))
        threading.Thread(
            target=self._listen, args=(pid,), name="hear of lost ranks", daemon=True
        ).start()

    def next_message(self) -> dict[str, Any]:
        """The launcher's next message; waits for it."""
        return self._inbox.get()

    def begin_round(self, *, has_spares: bool) -> None:
        """Raise in the main thread when a rank is lost, from now on.

        Args:
            has_spares: send the names of the modules that the script has imported, once it has.

        Raises:
            LostRankError: one is lost already.
        """
        self._is_inside = True
        if self._leaves.is_set():
            raise LostRankError
        if has_spares:
            timer = threading.Timer(_IMPORTED_S, self._send_modules)
            timer.daemon = True
            timer.start()

    def end_round(self) -> None:
        """Raise no more: the script has come to its end, and a lost rank is a message.

        Raises:
            LostRankError: it came before.
        """
        self._is_inside = False
        with self._lock:
            self._has_left.set()
            is_lost = self._leaves.is_set()
        if is_lost:
            raise LostRankError

    def is_reason_for(self, error: BaseException) -> bool:
        """True if the script has ended because a rank is lost, as far as the launcher says so soon.

        Args:
            error: by which the script has ended, and which is being handled.
        """
        self._is_inside = False
        is_awaited = isinstance(error, HangError) or _is_echo(error)
        if isinstance(error, HangError):
            self.line.send({"hung": error.absent})
        elif not self._leaves.is_set() and (number := next_number(error)) is not None:
            self.line.send({"num_microbatches": number})
            is_awaited = True
        if is_awaited:
            return self._leaves.wait(_CAUSE_S)
        return self._leaves.wait(_OTHER_CAUSE_S if isinstance(error, Exception) else 0.0)

    def clean(self) -> None:
        """Leave the process group, and let go of what the script has held."""
        self._has_left.set()
        if self._breaks_off is not None:
            self._breaks_off.join()  # before there are new connections
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized():
            with contextlib.suppress(Exception):  # its connections are broken
                dist.destroy_process_group()
        for name in ("last_exc", "last_value", "last_traceback"):
            setattr(sys, name, None)
        _let_go(vars(sys.modules["__main__"]))
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.accelerator.is_available():
            torch.accelerator.empty_cache()

    # in the main thread, and in the one that listens ----------------------------------------------

    def _on_call(self, signum: int, frame: FrameType | None) -> None:
        # Not into an `except` or `finally` block that runs, which has something to do for the end
        # of the round. Nor into an import, after which a package would lack what hadn't come yet.
        # The call comes again.
        if (
            self._is_inside
            and self._leaves.is_set()
            and sys.exception() is None
            and not _is_importing(frame)
        ):
            raise LostRankError

    def _listen(self, pid: int) -> None:
        while True:
            for message in self._receive(pid):
                if "variables" in message:
                    self._leaves, self._has_left = threading.Event(), threading.Event()
                    self._store_port = int(message["variables"]["MASTER_PORT"])
                if "leave" in message:
                    with self._lock:
                        is_inside = not self._has_left.is_set()
                        if is_inside:
                            self._break_off_in_thread(self._leaves)
                        self._leaves.set()
                    if is_inside:
                        continue
                self._inbox.put(message)

    def _send_modules(self) -> None:
        self.line.send({"modules": [name for name in list(sys.modules) if name != "__main__"]})

    def _receive(self, pid: int) -> list[dict[str, Any]]:
        """The launcher's next messages. Where it is gone, this process ends, and its children."""
        try:
            return list(self.line.receive())
        except EOFError:
            os.killpg(pid, signal.SIGKILL)
            raise

    def _break_off_in_thread(self, leaves: threading.Event) -> None:
        arguments = leaves, self._has_left, self._store_port
        thread = threading.Thread(
            target=self._break_off, args=arguments, name="leave a round", daemon=True
        )
        thread.start()
        self._breaks_off = thread  # before the main thread knows that it leaves, and waits for it

    @staticmethod
    def _break_off(leaves: threading.Event, has_left: threading.Event, store_port: int) -> None:
        """Free the main thread from what it waits for, and call it until it has left."""
        leaves.wait()
        while not has_left.is_set():
            if "torch" in sys.modules:
                from core.launch import hang_up

                hang_up(store_port)
                store_port = 0
                _abort_groups()
            main_thread = threading.main_thread().ident
            assert main_thread is not None
            signal.pthread_kill(main_thread, _CALL)
            has_left.wait(_AGAIN_S)


def _abort_groups() -> None:
    """Abort what runs on a device, where the backend can. Gloo, which can't, has lost its
    connections.
    """
    import torch.distributed as dist

    # its docstring calls it experimental
    from torch.distributed.distributed_c10d import _abort_process_group

    with contextlib.suppress(Exception):  # the main thread may leave the groups meanwhile
        if dist.is_initialized() and "gloo" not in dist.get_backend():
            _abort_process_group()


def _let_go(namespace: dict[str, Any]) -> None:
    """Delete the objects of a script, models and tensors among them. What a cache still knows is
    its classes.
    """
    kept = types.ModuleType, types.FunctionType, type, str, int, float
    for name in [name for name, value in namespace.items() if not isinstance(value, kept)]:
        del namespace[name]


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_globals.get("__name__") != "importlib._bootstrap":
        frame = frame.f_back
    return frame is not None


def _is_echo(error: BaseException) -> bool:
    from core.launch import WorkerFailure

    return WorkerFailure.of(error).is_echo
