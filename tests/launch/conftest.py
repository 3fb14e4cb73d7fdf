"""Programs that a test writes, runs in real processes, and looks for afterwards."""

import contextlib
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from core_testing import programs, spare
from core_testing.waiting import slowness, wait_until

# A line that torch 2.9 writes to stdout for each group of gloo; of two ranks in pieces.
_GLOO = re.compile(
    r"\[Gloo\] Rank |\d+ is connected to \d+\n? peer ranks\. Expected number of connected peer "
    r"ranks is : \d+\n?"
)

HELPERS = '''
"""The beginning of every test program: a launcher, a gloo group, and a line a rank on stdout."""
import functools, multiprocessing, os, sys, time

from core.cluster import LocalEnvironment
from core.launch import MultiprocessingLauncher, SubprocessScriptLauncher


class _Distributed:
    """torch.distributed, imported when it is needed: a worker without torch is there in a tenth of the time."""

    def __getattr__(self, name):
        import torch.distributed

        return getattr(torch.distributed, name)


dist = _Distributed()


def connected(launcher, num_processes=2, **options):
    multiprocessing.set_forkserver_preload(["torch"])  # once for all workers
    launcher.connect(cluster_environment=LocalEnvironment(), num_processes=num_processes, num_nodes=1, **options)
    return launcher


@functools.cache
def store_of(address, port, is_master):
    # One for all groups of a process: a new server on the same port would race with clients of the old one.
    return dist.TCPStore(address, port, is_master=is_master, wait_for_workers=False)


def join(environment, name="group"):
    store = store_of(environment.main_address, environment.main_port, environment.global_rank() == 0)
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(name, store),
        rank=environment.global_rank(),
        world_size=environment.world_size(),
    )


def rest():
    """Wait to be ended: a signal that comes just before a long sleep would be heard after it."""
    while True:
        time.sleep(0.05)


def say(*words):
    """One line in one write, so that ranks don't mix."""
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
'''


class Interpreter:
    """A program in an interpreter of its own, as `programs.Program` knows one."""

    def __init__(self, command, folder, **options):
        self._files = [Path(folder, name) for name in ("stdout", "stderr")]
        with self._files[0].open("w") as stdout, self._files[1].open("w") as stderr:
            process = subprocess.Popen(
                command, stdout=stdout, stderr=stderr, start_new_session=True, **options
            )
        self.args, self.pid, self.poll, self.wait = command, process.pid, process.poll, process.wait

    def output(self):
        return self._files[0].read_text()

    def errors(self):
        return self._files[1].read_text()


class Program:
    """A running program, in a session of its own. `output`, `errors` and `code` are there after
    `finish`.
    """

    def __init__(self, process):
        self.process = process
        self.output = self.errors = ""
        self.code = None
        self._num_read = 0

    def await_line(self, text):
        """Read stdout until a line contains `text`, and return it."""

        def read():
            is_over = self.process.poll() is not None and not self._living()
            for line in self.process.output().splitlines(keepends=True)[self._num_read :]:
                if line.endswith("\n"):
                    self._num_read += 1
                    if text in line:
                        return line
            assert not is_over, (
                f"{text!r} never came; {self.process.output()}\n{self.process.errors()}"
            )

        return wait_until(read, f"line with {text!r}")

    def finish(self, timeout_s=60):
        """Wait for the end, and for all that it started."""
        self.code = self.process.wait(timeout_s * slowness())
        wait_until(lambda: not self._living(), "end of all processes", timeout_s=timeout_s)
        self.output, self.errors = _GLOO.sub("", self.process.output()), self.process.errors()
        return self

    def signal(self, number):
        """Send a signal to the main process alone."""
        os.kill(self.process.pid, number)

    def survivors(self):
        """Processes of this program that still exist after a while."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self._living(), "end of all processes", timeout_s=20)
        return self._living()

    def workers(self):
        """The other processes of this program."""
        return [process for process in self._living() if process.pid != self.process.pid]

    def kill(self):
        for process in self._living():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def _living(self):
        """All processes in its session, but for the spares that they are forked from."""
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getsid(pid) == self.process.pid and _is_at_work(
                    process := psutil.Process(pid)
                ):
                    found.append(process)
        return found


def _is_at_work(process):
    return process.name() != spare.NAME and process.status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def program(tmp_path):
    """`program(source, *arguments, command=...)` starts a program; all of its processes are gone
    after the test.

    In a copy of a process that has imported torch, or by a command of its own.
    """
    (tmp_path / "helpers.py").write_text(HELPERS)
    started = []

    def start(source, *arguments, command=None, stdin=subprocess.DEVNULL):
        script = tmp_path / "script.py"
        script.write_text("from helpers import *\n" + textwrap.dedent(source))
        path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        if command is None:
            process = programs.start([sys.executable, script, *arguments], env=env, cwd=tmp_path)
        else:
            process = Interpreter(command, tmp_path, env=env, cwd=tmp_path, stdin=stdin)
        started.append(Program(process))
        return started[-1]

    yield start
    for each in started:
        each.kill()
