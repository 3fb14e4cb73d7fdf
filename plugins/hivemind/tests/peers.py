"""Peers as tests start them: each a program of its own, as on machines that know nothing of each
other.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from core_testing import programs
from core_testing.waiting import slowness, wait_until

_PROGRAM = Path(__file__).with_name("peer_program.py")


class Peer:
    """One program, and what it has told so far. It ends with the process that has started it."""

    def __init__(self, *, stop_at, steps=-1, seed=0, options=None, **told):
        told = {
            "stop_at": str(stop_at),
            "steps": steps,
            "seed": seed,
            "options": options or {},
            **told,
        }
        self._program = programs.start(
            [sys.executable, _PROGRAM, json.dumps(told)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            forks_others=False,  # a process of the tests' own would be among the peer's
        )
        self.group, self._num_read, self._events = self._program.pid, 0, []

    @property
    def events(self):
        # what is behind the last end of a line is still being written
        lines = self._program.output().split("\n")[self._num_read : -1]
        self._num_read += len(lines)
        self._events += [json.loads(line) for line in lines if line.startswith("{")]
        return self._events

    @property
    def errors(self):
        return self._program.errors()

    def wait_for(self, kind, *, number=0, timeout_s=300):
        """The first event of its kind, of this step or a later one."""

        def has_come():
            has_ended = self._program.poll() is not None
            found = [
                one
                for one in self.events
                if one["event"] == kind and one.get("number", 0) >= number
            ]
            assert found or not has_ended, f"no {kind!r}: {self.events}\n{self.errors}"
            return found

        try:
            return wait_until(has_come, f"{kind!r} of a peer", timeout_s=timeout_s)[0]
        except AssertionError:
            self.end()
            raise

    @property
    def addresses(self):
        return self.wait_for("here")["addresses"]

    @property
    def steps(self):
        return {one["number"]: one for one in self.events if one["event"] == "step"}

    @property
    def error(self):
        return next((one["text"] for one in self.events if one["event"] == "error"), None)

    def finish(self, timeout_s=300):
        """Wait for its end; the last event."""
        code = self.wait_for_code(timeout_s)
        assert code == 0, f"{code}: {self.errors}"
        return self.events[-1]

    def wait_for_code(self, timeout_s=300):
        """Wait for its end; the exit code."""
        try:
            return self._program.wait(timeout_s * slowness())
        except subprocess.TimeoutExpired:
            raise AssertionError(f"a peer hangs: {self.events}") from None
        finally:
            self.end()

    def end(self):
        """Kill what still runs of it."""
        if self._program.poll() is None:
            self._program.kill()
            self._program.wait(10)


def alive_in_session(session):
    """Names of the processes that a peer has left running, in whatever group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = stat.read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        state, _, _, of_session = rest.split()[:4]
        if int(of_session) == session and state != "Z":
            found.append(name)
    return found
