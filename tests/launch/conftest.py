"""Programs that a test writes, runs in real processes, and looks for afterwards."""

import os
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field

import psutil
import pytest

HELPERS = '''
"""What every test program needs: a launcher, a gloo group, and a line a rank on stdout."""
import functools, os, sys, time

import torch.distributed as dist

from core.cluster import LocalEnvironment
from core.launch import MultiprocessingLauncher, SubprocessScriptLauncher


def connected(launcher, num_processes=2, **options):
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


def say(*words):
    """One line in one write, so that ranks don't mix."""
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
'''


@dataclass
class Program:
    """A running program. `output` and `code` are there after `finish`."""

    process: subprocess.Popen
    marker: str
    lines: list[str] = field(default_factory=list)
    output: str = ""
    errors: str = ""
    code: int | None = None

    def await_line(self, text):
        """Read stdout until a line contains `text`, and return it."""
        for line in self.process.stdout:
            self.lines.append(line)
            if text in line:
                return line
        pytest.fail(f"{text!r} never came; {''.join(self.lines)}\n{self.process.stderr.read()}")

    def finish(self, timeout_s=60):
        """Wait for the end, and for all that it started."""
        rest, self.errors = self.process.communicate(timeout=timeout_s)
        self.output, self.code = "".join(self.lines) + rest, self.process.returncode
        return self

    def survivors(self, timeout_s=20):
        """Processes of this program that still exist after a while; they know it by an environment variable."""
        deadline = time.monotonic() + timeout_s
        while (found := _processes_with(self.marker)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def workers(self):
        """The other processes of this program."""
        return [process for process in _processes_with(self.marker) if process.pid != self.process.pid]

    def kill(self):
        for process in _processes_with(self.marker):
            process.kill()
        self.process.kill()
        self.process.communicate()


def _processes_with(marker):
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("CORE_TEST_MARKER") == marker:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def program(tmp_path):
    """`program(source, *arguments, command=...)` starts a program; all of its processes are gone after the test."""
    (tmp_path / "helpers.py").write_text(HELPERS)
    started = []

    def start(source, *arguments, command=None, **options):
        script = tmp_path / "script.py"
        script.write_text("from helpers import *\n" + textwrap.dedent(source))
        marker = f"{tmp_path}:{len(started)}"
        path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            command or [sys.executable, str(script), *arguments],
            env=os.environ | {"CORE_TEST_MARKER": marker, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            cwd=tmp_path,
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )
        started.append(Program(process, marker))
        return started[-1]

    yield start
    for each in started:
        each.kill()
