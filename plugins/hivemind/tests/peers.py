"""Peers as tests start them: each a program of its own, as on machines that know nothing of each
other.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from core_testing.waiting import slowness

_PROGRAM = Path(__file__).with_name("peer_program.py")


class Peer:
    """One program, and what it has told so far."""

    def __init__(self, *, stop_at, steps=-1, seed=0, options=None, **told):
        told = {
            "stop_at": str(stop_at),
            "steps": steps,
            "seed": seed,
            "options": options or {},
            **told,
        }
        self._process = subprocess.Popen(
            [sys.executable, _PROGRAM, json.dumps(told)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self.group, self.events, self.errors = self._process.pid, [], ""
        self._news = threading.Condition()
        self._readers = [
            threading.Thread(target=one, daemon=True) for one in (self._read, self._read_errors)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self):
        for line in self._process.stdout:
            with self._news:
                if line.startswith("{"):
                    self.events.append(json.loads(line))
                self._news.notify_all()

    def _read_errors(self):
        self.errors = self._process.stderr.read()

    def _has(self, kind, number):
        return any(one["event"] == kind and one.get("number", 0) >= number for one in self.events)

    def wait_for(self, kind, *, number=0, timeout_s=300):
        """The first event of its kind, of this step or a later one."""
        with self._news:
            self._news.wait_for(
                lambda: self._has(kind, number) or self._process.poll() is not None,
                timeout_s * slowness(),
            )
            for one in self.events:
                if one["event"] == kind and one.get("number", 0) >= number:
                    return one
        self.end()
        raise AssertionError(f"no {kind!r}: {self.events}\n{self.errors}")

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
            return self._process.wait(timeout_s * slowness())
        except subprocess.TimeoutExpired:
            raise AssertionError(f"a peer hangs: {self.events}") from None
        finally:
            self.end()

    def end(self):
        """Kill what still runs of it."""
        if self._process.poll() is None:
            os.killpg(self.group, signal.SIGKILL)
            self._process.wait(10)
        self._close()

    def _close(self):
        for reader in self._readers:
            reader.join(10)
        self._process.stdout.close()
        self._process.stderr.close()


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
