"""Warnings are shown once a run: not once a rank, nor again because Python has forgotten what it
has shown.
"""

import math
import os
import sys
import warnings
from collections import Counter

import pytest

from core.display import warnings_once as shown_warnings
from core.display.warnings_once import GivenWarning, WarningsOfRanks
from core_testing import programs

PROGRAM = """
import warnings
from core.display import warnings_once

warnings_once.HOLD_S = 600  # ranks of a busy machine come late
warnings.warn("in the script")

def work(environment):
    warnings.warn("in all ranks")
    warnings.warn("an old name", DeprecationWarning)
    if environment.global_rank() == 1:
        warnings.warn("in one rank", RuntimeWarning)
    if environment.global_rank() == 0:
        warnings.warn("in rank 0")

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
    return Counter(line.partition(": ")[2] for line in lines)


@pytest.mark.parametrize(
    "launcher",
    [
        "SubprocessScriptLauncher()",
        "MultiprocessingLauncher('fork')",
        pytest.param("MultiprocessingLauncher('spawn')", marks=pytest.mark.slow),
    ],
)
def test_what_all_ranks_give_is_shown_once(program, launcher):
    assert shown(program, launcher) == {
        # A spawned rank runs the script again, and the main process counts no warnings before it
        # launches.
        "UserWarning: in the script": 2 if "spawn" in launcher else 1,
        "UserWarning: in all ranks": 1,
        "UserWarning: in rank 0": 1,
        "RuntimeWarning: in one rank [rank 1]": 1,
        # Python shows these of the main module, which a spawned worker's isn't.
        **({} if "spawn" in launcher else {"DeprecationWarning: an old name": 1}),
    }


def test_filters_go_on_working(program):
    always = shown(program, "MultiprocessingLauncher('fork')", "always")
    assert always["UserWarning: in all ranks"] == 2
    assert always["UserWarning: in rank 0"] == 2
    assert always["RuntimeWarning: in one rank [rank 1]"] == 2
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


@pytest.fixture
def nothing_shown(monkeypatch):
    """A process that has shown nothing; gives what it shows from now on."""
    lines = []
    monkeypatch.setattr(shown_warnings, "_num_shown", Counter())
    for name in ("_senders", "_main_ranks"):
        monkeypatch.setattr(shown_warnings, name, [])
    monkeypatch.setattr(warnings, "showwarning", lambda message, *rest: lines.append(str(message)))
    return lines


def given(text):
    return GivenWarning.of(text, FutureWarning, __file__, 1)


def test_what_others_give_waits_for_rank_0(nothing_shown, monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(shown_warnings.time, "monotonic", lambda: now_s)
    ranks = WarningsOfRanks(is_rank=False)
    ranks.add(2, given("a"))
    ranks.add(1, given("a"))
    ranks.add(1, given("b"))
    assert (nothing_shown, ranks.due_s) == ([], shown_warnings.HOLD_S)
    ranks.add(0, given("b"))
    assert nothing_shown == ["b"]
    now_s = 1.5 * shown_warnings.HOLD_S
    ranks.show()
    assert nothing_shown == ["b", "a [rank 1, 2]"]
    assert ranks.due_s == math.inf
    ranks.add(3, given("b"))
    ranks.add(4, given("c"))
    ranks.show(all_held=True)
    assert nothing_shown == ["b", "a [rank 1, 2]", "c [rank 4]"]


def test_ranks_without_a_main_process_agree_who_shows(nothing_shown, monkeypatch):
    seen = []

    def is_first(text):
        seen.append(text)
        return seen.count(text) == 1

    for rank in (1, 0):
        for name in ("_senders", "_num_shown"):
            getattr(shown_warnings, name).clear()
        shown_warnings.share_warnings(rank, is_first)
        shown_warnings._show("a", UserWarning, __file__, 1)
        shown_warnings._show("a", UserWarning, __file__, 1)
    assert nothing_shown == ["a [first on rank 1]"]
    shown_warnings._senders.clear()
    WarningsOfRanks(is_rank=True)
    shown_warnings.share_warnings(0, is_first)
    assert not shown_warnings._senders, "a main process shows what its ranks send"


def test_a_category_that_the_main_process_does_not_know_is_shown_as_its_base(tmp_path):
    row = given("a").to_message() | {
        "categories": ("nowhere:Odd", "builtins:FutureWarning", "builtins:Warning")
    }
    assert GivenWarning.from_message(row).category is FutureWarning
    assert given("a").category is FutureWarning


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
