"""Scripts that the kit runs in forks of a server have what a new interpreter gives them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from core_testing import programs
from core_testing.scripts import run_forked, run_script
from core_testing.spare import CAN_ADOPT
from core_testing.waiting import wait_until

STATE = """
import sys, torch
assert "LEFT" not in vars(torch)
torch.LEFT = sys.argv
raise ValueError("had enough")
"""
KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


def test_a_forked_script_finds_what_a_new_interpreter_gives(tmp_path, monkeypatch):
    LOOK = """
import atexit, json, os, sys

def main():
    kept = ("LEFT_BY_A_TEST", "OMP_NUM_THREADS")
    print(json.dumps([sys.argv, sys.orig_argv, os.getcwd(), sys.path[0], __file__, sys.modules["__main__"].__file__,
                      {name: os.environ.get(name) for name in kept}, sys.stdin.read()]))

if __name__ == "__main__":
    atexit.register(print, "the end")
    main()
    sys.exit(json.loads(sys.argv[1])[0])
"""
    monkeypatch.setenv("LEFT_BY_A_TEST", "1")
    found = [run(tmp_path / "look.py", LOOK, [3], timeout_s=60) for run in (run_script, run_forked)]
    assert [done.returncode for done in found] == [3, 3]
    assert found[0].stdout == found[1].stdout
    assert found[1].stdout.endswith("the end\n")


def test_each_script_begins_anew_and_ends_as_scripts_do(tmp_path):
    for _ in range(2):
        done = run_forked(tmp_path / "state.py", STATE, [], timeout_s=60)
        assert done.returncode == 1
        assert done.stderr.startswith("Traceback")
        assert done.stderr.endswith("ValueError: had enough\n")
    assert run_forked(tmp_path / "kill.py", KILL, [], timeout_s=60).returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "text",
    [
        "import atexit, threading, time; atexit.register(print, 'the end')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('a thread'))).start(); print('the "
        "script', end='')",
        "import sys; sys.exit('a message')",
        "import sys; sys.exit(300)",
        "import sys; sys.exit(None)",
        "import sys; sys.excepthook = lambda *_: sys.exit(130); raise KeyError",
        "raise KeyError",
        "raise KeyboardInterrupt",
        "class Interrupted(KeyboardInterrupt): pass\nraise Interrupted",
        "import sys; print('x'); sys.stdout.close()",
    ],
)
def test_a_forked_script_ends_as_in_a_new_interpreter(tmp_path, text):
    ends = [run(tmp_path / "end.py", text, [], timeout_s=60) for run in (run_script, run_forked)]
    new, forked = ((end.returncode, end.stdout, end.stderr.splitlines()[-1:]) for end in ends)
    assert forked == new


@pytest.mark.slow
def test_a_forked_script_that_hangs_is_killed(tmp_path):
    HANG = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(60)"
    run_forked(tmp_path / "state.py", STATE, [], timeout_s=60)  # the server has started
    with pytest.raises(subprocess.TimeoutExpired):
        run_forked(tmp_path / "hang.py", HANG, [], timeout_s=3)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_programs_run_side_by_side_each_with_its_own_variables_output_and_end(tmp_path):
    text = "import os, sys, time; print(os.environ['NAME'], sys.argv, flush=True); time.sleep(60)"
    waiting = programs.start([sys.executable, "-c", text, "x"], env={"NAME": "first"})
    text = "import os, warnings; os.write(2, b'errors '); warnings.warn('odd')"
    done = programs.run([sys.executable, "-W", "error", "-c", text], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("errors Traceback")
    assert done.stderr.endswith("UserWarning: odd\n")
    assert waiting.poll() is None
    waiting.kill()
    assert waiting.communicate(60) == ("first ['-c', 'x']\n", "")
    assert waiting.returncode == -signal.SIGKILL


@pytest.mark.skipif(not CAN_ADOPT, reason="the kernel ends programs on Linux only")
def test_programs_end_with_a_client_that_is_killed():
    """The interpreters that they have started in sessions of their own end too."""

    def is_alive(pid):
        try:
            return " Z " not in Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            return False

    rest = [sys.executable, "-c", "import time; time.sleep(600)"]
    start = f"""
import os, subprocess
child = subprocess.Popen({rest}, start_new_session=True)
print(os.getpid(), child.pid, flush=True)
child.wait()
"""
    client = f"""
import os, signal
from core_testing import programs
from core_testing.waiting import wait_until
program = programs.start({[sys.executable, "-c", start]}, preload="")
wait_until(program.output, "ids of both processes")
print(program.output(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    pids = programs.run([sys.executable, "-c", client]).stdout.split()
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_alive, pids)), "end of both processes")


@pytest.mark.parametrize("forks_others", [True, False])
def test_what_a_forked_script_starts_is_its_child_and_new(tmp_path, forks_others):
    STARTS = """
import json, multiprocessing, os, signal, subprocess, sys

def look():
    return [sys.argv, os.getppid(), os.environ["OMP_NUM_THREADS"], "left" in vars(sys), "torch" in sys.modules]

def main():
    sys.left = True
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    source = "import os, signal, sys, warnings; os.write(int(sys.argv[1]), sys.stdin.read().encode()); " \\
        "print(os.getppid(), os.getsid(0) == os.getpid(), os.getcwd(), 'left' in vars(sys), 'torch' in sys.modules, " \\
        "signal.getsignal(signal.SIGUSR1), *map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))); " \\
        "warnings.warn('odd')"
    reading, writing = os.pipe()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source, str(writing)],
        input="asked", capture_output=True, text=True, pass_fds=[writing], cwd="/", start_new_session=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.apply(look)
    ended = subprocess.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]).returncode
    print(json.dumps([os.getpid(), os.read(reading, 9).decode(), done.returncode, done.stdout.split(),
                      done.stderr.splitlines()[-1], spawned, ended]))

if __name__ == "__main__":
    main()
"""
    (tmp_path / "starts.py").write_text(STARTS)
    command = [sys.executable, tmp_path / "starts.py", "x"]
    done = programs.run(
        command, forks_others=forks_others, env=os.environ | {"OMP_NUM_THREADS": "3"}
    )
    pid, passed, code, output, error, spawned, ended = json.loads(done.stdout)
    is_forked = str(forks_others and CAN_ADOPT)
    assert (passed, code, ended) == ("asked", 1, -signal.SIGKILL), done.stderr
    assert output == [str(pid), "True", "/", "False", is_forked, "1", str(int(signal.SIGUSR2))]
    assert error == "UserWarning: odd"
    assert spawned == [[str(tmp_path / "starts.py"), "x"], pid, "3", False, is_forked == "True"]


def test_a_script_imports_nothing_that_its_server_has_not(tmp_path):
    text = (
        "import sys; print([name for name in ('torch', 'core', 'core.registry') if name in "
        "sys.modules])"
    )
    done = run_forked(tmp_path / "bare.py", text, [], timeout_s=60, preload="core.registry", env={})
    assert done.stdout == "['core', 'core.registry']\n", done.stderr


def test_a_server_imports_the_modules_of_packages_that_are_installed(tmp_path, monkeypatch):
    package = tmp_path / "halved"
    package.mkdir()
    for name in ("__init__", "__main__", "plain"):
        (package / f"{name}.py").write_text("")
    (package / "needy.py").write_text("import halved_nowhere")
    monkeypatch.syspath_prepend(tmp_path)
    text = "import sys; print([name for name in sys.modules if name.startswith('halved')])"
    done = run_forked(
        tmp_path / "whole.py", text, [], timeout_s=60, preload="halved_nowhere:*,halved:*"
    )
    assert done.stdout == "['halved', 'halved.plain']\n", done.stderr


def test_what_a_fork_of_a_script_starts_is_the_forks_child(tmp_path):
    """The script's spare is no relative of it."""
    text = """
import os, subprocess, sys
if os.fork() == 0:
    parent = subprocess.run([sys.executable, "-c", "import os; print(os.getppid())"], capture_output=True, text=True)
    print(int(parent.stdout) == os.getpid(), flush=True)
    os._exit(0)
os.wait()
"""
    done = programs.run([sys.executable, "-c", text], cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("True\n", "")
