"""Warnings are shown once a run: not once a rank, nor again because Python has forgotten what it
has shown.
"""

import os
import sys
from collections import Counter

import pytest
from torch.distributed import HashStore

from core.display import warnings_once
from core_testing import programs

PROGRAM = """
import warnings
from core.display.warnings_once import share_warnings

warnings.warn("in the script")

def work(environment):
    rank = environment.global_rank()
    store = store_of(environment.main_address, environment.main_port, rank == 0)
    share_warnings(rank, store)
    store.add("come", 1)
    while store.add("come", 0) % 2:
        time.sleep(0.01)
    warnings.warn("in all ranks")
    warnings.warn("an old name", DeprecationWarning)
    if rank == 1:
        warnings.warn("in one rank", RuntimeWarning)
    if rank == 0:
        warnings.warn("in rank 0")
    if os.fork() == 0:  # a loader's worker
        warnings.warn("in all ranks' children")
        os._exit(0)
    os.wait()
    store.add("gone", 1)
    while rank == 0 and store.add("gone", 0) % 2:
        time.sleep(0.01)

if __name__ == "__main__":
    if len(sys.argv) > 1:
        warnings.simplefilter(sys.argv[1])
    launcher = connected({launcher})
    for _ in range(2):
        launcher.launch(work, launcher.cluster_environment)
        warnings.filterwarnings("ignore", "nothing like it")  # by which Python forgets what it has shown
"""


def shown(program, launcher, *arguments):
    """The warnings that a program shows, without their places; the ranks', in the order of the
    alphabet.
    """
    # A fork's ranks can come from a spare interpreter; those that are new have to import core as
    # they would.
    command = None if "fork" in launcher else [sys.executable, "script.py", *arguments]
    done = program(PROGRAM.format(launcher=launcher), *arguments, command=command).finish()
    assert done.code == 0, done.errors
    lines = [line for line in done.errors.splitlines() if "script.py" in line]
    assert lines, done.errors
    return Counter(line.partition(": ")[2].partition(" [first on")[0] for line in lines)


@pytest.mark.parametrize(
    "launcher",
    [
        "SubprocessScriptLauncher()",
        "MultiprocessingLauncher('fork')",
        pytest.param("MultiprocessingLauncher('spawn')", marks=pytest.mark.slow),
    ],
)
def test_what_all_ranks_give_is_shown_once(program, launcher):
    # Each launch of this one makes new processes.
    times = 1 if launcher.startswith("Subprocess") else 2
    assert shown(program, launcher) == {
        "UserWarning: in the script": 1,
        "UserWarning: in all ranks": times,
        "UserWarning: in all ranks' children": times,
        "UserWarning: in rank 0": times,
        "RuntimeWarning: in one rank": times,
        # Python shows these of the main module, which a spawned worker's isn't.
        **({} if "spawn" in launcher else {"DeprecationWarning: an old name": times}),
    }


def test_filters_go_on_working(program):
    always = shown(program, "MultiprocessingLauncher('fork')", "always")
    assert always["UserWarning: in all ranks"] == 2
    assert always["UserWarning: in rank 0"] == 2
    assert always["RuntimeWarning: in one rank"] == 2
    assert always["UserWarning: in the script"] == 1


@pytest.mark.parametrize(("whose", "count"), [("ours", 2), ("theirs", 3)])
def test_python_shows_again_only_what_is_always_shown(tmp_path, whose, count):
    again = """
import logging, sys, warnings
def warn():
    warnings.warn("the same")
if sys.argv[1] == "theirs":
    logging.basicConfig(format="logged %(message)s")
    logging.captureWarnings(True)
from core import Fabric
fabric = Fabric(accelerator="cpu")
for action in ("default", "default", "always", "ignore"):
    warnings.simplefilter(action)
    warn()
"""
    (tmp_path / "again.py").write_text(again)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    errors = programs.run(
        [sys.executable, tmp_path / "again.py", whose], cwd=tmp_path, env=environment
    ).stderr
    lines = [line for line in errors.splitlines() if "UserWarning" in line]
    assert len(lines) == count, errors
    assert all(line.startswith("logged") == (whose == "theirs") for line in lines)


def test_ranks_agree_who_shows(monkeypatch):
    lines, store = [], HashStore()
    monkeypatch.setattr(
        warnings_once, "_by_python", lambda message, *rest: lines.append(str(message))
    )
    monkeypatch.setattr(warnings_once, "_rank", warnings_once._Rank())
    for rank in (1, 0):
        monkeypatch.setattr(warnings_once, "_num_given", Counter())
        warnings_once.share_warnings(rank, store)
        for _ in range(2):
            warnings_once._show("a", UserWarning, __file__, 1)
    assert lines == ["a [first on rank 1]"]


def test_a_warning_of_cores_own_line_quotes_the_users(tmp_path):
    calling = """from core import Fabric
from core_noisy import work

fabric = Fabric(accelerator="cpu")
work()
"""
    noisy = """import warnings

def work():
    warnings.warn("too warm")
"""
    (tmp_path / "core_noisy.py").write_text(noisy)
    (tmp_path / "script.py").write_text(calling)
    done = programs.run([sys.executable, tmp_path / "script.py"], cwd=tmp_path, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"{tmp_path / 'script.py'}:5: UserWarning: too warm\n  work()\n"
