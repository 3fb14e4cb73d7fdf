"""hivemind's processes beside this one: the node, and what each averager needs to end with its
parent.
"""

from __future__ import annotations

import contextlib
import multiprocessing

import hivemind

from core_hivemind.processes import between_answers, ends_with_parent

_START_TIMEOUT_S = 60
_ANSWER_TIMEOUT_S = 3
_FORK = multiprocessing.get_context("fork")


class Node(hivemind.DHT):  # type: ignore[misc]  # hivemind is untyped
    """The process that knows other peers, with its p2pd: it leaves neither behind."""

    def run(self) -> None:
        """In the child. Serve until the end."""
        with ends_with_parent():
            super().run()

    def shutdown(self) -> None:
        """End it by the signal that it would get if this process had gone: there is nothing that it
        has to say.
        """
        if self.is_alive():
            # what it was sent before has arrived when it answers
            with contextlib.suppress(Exception):
                self.run_coroutine(self._get_client_mode, return_future=True).result(
                    _ANSWER_TIMEOUT_S
                )
            with between_answers():
                self.terminate()
                self.join(self.shutdown_timeout)

    def __del__(self) -> None:
        """Nothing: it ends in `Swarm.leave`."""


class Child:
    """An averager's process. It ends with its parent, leaves no socket, and the parent's Ctrl-C as
    it is.

    It is forked, as the node is, whatever start method the program has set: it can't be pickled.
    """

    _start_method = "fork"
    _Popen = staticmethod(_FORK.Process._Popen)

    def run_in_background(self, await_ready: bool = True, timeout: float | None = None) -> None:
        """Start the child. hivemind would have this process ignore Ctrl-C from here on."""
        self.start()  # type: ignore[attr-defined]
        self.wait_until_ready(_START_TIMEOUT_S if timeout is None else timeout)  # type: ignore[attr-defined]

    def run(self) -> None:
        """In the child. Serve until the end."""
        with ends_with_parent():
            super().run()  # type: ignore[misc]

    def shutdown(self) -> None:
        """Nothing: hivemind's optimizer calls it while the node may still hear of it. `end`
        follows.
        """

    def end(self) -> None:
        """End the child, by the signal that it would get if this process had gone, and the threads
        beside it.
        """
        with contextlib.suppress(Exception):  # what it was sent before has arrived when it answers
            self.get_group_bits(wait=False).result(_ANSWER_TIMEOUT_S)  # type: ignore[attr-defined]
        self._inner_pipe.send(("_SHUTDOWN", None))  # type: ignore[attr-defined]  # the thread that hands out the state
        with between_answers():
            self.terminate()  # type: ignore[attr-defined]
            self.join(self.shutdown_timeout)  # type: ignore[attr-defined]

    def __del__(self) -> None:
        """Nothing: what is left of it ends in `Swarm.leave`."""
