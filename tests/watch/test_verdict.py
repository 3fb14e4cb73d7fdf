"""The decision itself, without ranks: who doesn't come, and when nobody may be accused."""

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from torch import nn
from torch.distributed import HashStore

from core import ConfigurationError, Fabric, HangError, Watch
from core.contract.world import World
from core.launch.report import Report, worker_error
from core.watch import adaptive_timeout, options, run
from core.watch.account import Account
from core.watch.adaptive_timeout import AdaptiveTimeout
from core.watch.board import FolderBoard
from core.watch.ending import SIGNAL
from core.watch.looking import Eye, began_at, process_state
from core.watch.progress import Pulse, phase, pulse
from core.watch.verdict import find
from core.watch.watching import Watching
from core.watch.written_stack import line_in


def account(rank, state, since_s=40.0, **more):
    return Account(rank, state, **{"phase": "step", "since_s": since_s, "allowed_s": 30.0, "least_s": 10.0} | more)


WAITS = account(0, "waits", collective="gloo:all_reduce [[10]]", line="a.py:1 in f", is_usual=True)

GIVES_UP = replace(WAITS, state="aborts", since_s=1.0, call="0:7")


@pytest.mark.parametrize(
    ("accounts", "absent", "says"),
    [
        ([WAITS, account(1, "asleep", line="a.py:9 in g")], (1,), "rank 1 is asleep at a.py:9 in g, phase step"),
        ([WAITS, account(1, "stopped"), account(2, "asleep")], (1,), "rank 1 is stopped by a signal"),
        ([WAITS, account(1, "left")], (1,), "rank 1 has left the run"),
        ([WAITS, account(1, "asleep", allowed_s=300.0)], None, ""),
        ([WAITS, account(1, "asleep"), account(2, "computes", allowed_s=300.0)], None, ""),
        # Nobody waits, so nobody is missed.
        (
            [account(0, "asleep"), account(1, "stopped")],
            (),
            "no rank waits for another, and the run goes on: rank 0 is",
        ),
        ([account(0, "asleep"), account(1, "computes", allowed_s=300.0)], None, ""),
        ([account(0, "asleep"), account(1, "left")], None, ""),
        ([WAITS, account(1, "debugged")], None, ""),
        (
            [WAITS, account(1, "waits", 12.0, line="a.py:2 in f", collective="gloo:barrier []")],
            (1,),
            "in another collective",
        ),
        ([WAITS, account(1, "waits", 9.0, line="a.py:2 in f", collective="gloo:barrier []")], None, ""),
        (
            [WAITS, account(1, "waits", line="a.py:1 in f", collective="gloo:all_reduce [[9]]")],
            (1,),
            "in the same call, with other shapes",
        ),
        # New to both: nothing tells which one has gone astray, and both are shown.
        (
            [replace(WAITS, is_usual=False), account(1, "waits", line="a.py:2 in f", collective="gloo:barrier []")],
            (0, 1),
            "in different collectives, and nothing tells who went astray: rank 0 waits for the others at a.py:1 in f "
            "(gloo:all_reduce [[10]]), phase step, for 40 s; rank 1 waits for the others at a.py:2 in f (gloo:barrier",
        ),
        # Two of three went one way.
        (
            [
                replace(WAITS, is_usual=False),
                account(1, "waits", line="a.py:2 in f", collective="gloo:barrier []"),
                replace(WAITS, rank=2, is_usual=False),
            ],
            (1,),
            "rank 1 waits for the others at a.py:2 in f (gloo:barrier []), phase step, for 40 s; while rank 0 waits for"
            " the others at a.py:1 in f (gloo:all_reduce [[10]]), phase step, for 40 s (and 1 more there)",
        ),
        # Gloo has given up in rank 0, and both tell of the same call.
        ([GIVES_UP, account(1, "waits", 1.0)], None, ""),
        (
            [
                GIVES_UP,
                replace(GIVES_UP, rank=1, state="computes", collective="gloo:all_gather [[4]]", line="a.py:9 in g"),
            ],
            (0, 1),
            "ranks came to one collective with different calls: rank 0 called gloo:all_reduce [[10]] at a.py:1 in f; "
            "rank 1 called gloo:all_gather [[4]] at a.py:9 in g",
        ),
        (
            [GIVES_UP, *[account(rank, "waits", call="0:7") for rank in (1, 2)]],
            (0, 1, 2),
            "rank 1 and 1 more did not come",
        ),
        (
            [GIVES_UP, replace(GIVES_UP, rank=1, line="a.py:9 in g", is_usual=False)],
            (1,),
            "rank 1 called gloo:all_redu",
        ),
        ([GIVES_UP, replace(GIVES_UP, rank=1, state="waits")], (0,), "rank 0 was ended by native code at a.py:1 in f"),
        ([WAITS, account(1, "waits", phase="end of epoch", line="a.py:1 in f")], (1,), "out of data"),
        ([WAITS, account(1, "waits", collective=WAITS.collective, line=WAITS.line)], (0, 1), "look at the network"),
        ([WAITS, account(1, "waits", 20.0, collective=WAITS.collective, line=WAITS.line)], None, ""),
    ],
)
def test_the_ranks_that_do_not_come_are_found(accounts, absent, says):
    verdict = find(accounts)
    if absent is None:
        assert verdict is None
    else:
        assert verdict.absent == absent
        assert says in verdict.reason


def test_the_timeout_follows_the_runs_own_steps(monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(adaptive_timeout.time, "monotonic", lambda: now_s)
    own = Pulse()
    watched = AdaptiveTimeout(own, 30.0)
    own.phase = "step"

    def live(seconds, marks_every):
        nonlocal now_s
        for second in range(seconds):
            now_s += 1.0
            own.count += second % marks_every == 0
            watched.look()

    live(2, 2)
    assert watched.allowed_s(is_at_work=False) == 300.0  # the first steps compile
    live(20, 5)
    assert watched.allowed_s(is_at_work=False) == 50.0  # ten times the longest step
    assert watched.allowed_s(is_at_work=True) == 500.0
    for _ in range(20):
        now_s += 1.0
        watched.look(is_waiting=True)  # for another rank, which is no step of its own
    own.count += 1
    now_s += 1.0
    watched.look()
    assert watched.allowed_s(is_at_work=False) == 50.0
    now_s += 1000.0  # the machine was suspended
    assert watched.look() < 10
    own.phase = "checkpoint"
    now_s += 1.0
    assert watched.look() == 0.0
    assert watched.allowed_s(is_at_work=False) == 300.0
    own.longest_s["checkpoint"] = 4.0
    assert watched.allowed_s(is_at_work=False) == 40.0
    now_s += 1.0
    assert watched.look(num_collectives=7) == 0.0  # a loop that marks nothing


def test_a_phase_keeps_its_time_only_if_it_ended_well():
    pulse.begin()
    with phase("checkpoint"):
        assert (pulse.phase, pulse.count) == ("checkpoint", 1)
    assert (pulse.phase, [*pulse.longest_s]) == ("set-up", ["checkpoint"])
    pulse.begin()
    with pytest.raises(OSError, match="full"), phase("checkpoint"):
        raise OSError("full")
    assert pulse.longest_s == {}


def test_the_state_and_line_of_a_thread_are_seen():
    ready, goes_on, numbers = threading.Event(), threading.Event(), []

    def sleep():
        numbers.extend([threading.get_ident(), threading.get_native_id()])
        ready.set()
        goes_on.wait()

    thread = threading.Thread(target=sleep)
    thread.start()
    ready.wait()
    eye = Eye(*numbers)
    time.sleep(0.1)
    sight, stack = eye.look(), eye.stack()
    goes_on.set()
    thread.join()
    assert sight.state in ("asleep", "works")  # pytest's own threads may be at work
    assert sight.line == f"{__file__}:{sleep.__code__.co_firstlineno + 3} in sleep"
    assert "goes_on.wait()" in stack
    assert process_state(os.getpid()) == "R"
    assert process_state(2**22 + 1) == "Z"
    assert began_at(os.getpid()) != began_at(1)


def test_what_faulthandler_writes_is_read():
    text = (
        'Thread 0x1 (most recent call first):\n  File "/usr/lib/x.py", line 3 in old\n\n'
        f'Current thread 0x2 (most recent call first):\n  File "{os.__file__}", line 1 in wait\n'
        '  File "/a/b.py", line 7 in train\n'
    )
    assert line_in(text) == "/a/b.py:7 in train"
    assert line_in("") == ""


def test_where_nobody_waits_that_is_told_once_and_the_run_goes_on(tmp_path, capfd):
    watching = Watching(Watch(limit=timedelta(seconds=1), folder=tmp_path), HashStore(), World(), 0)
    pulse.longest_s["set-up"] = 0.01  # it isn't new
    try:
        ends_s = time.monotonic() + 60
        while not (reports := [*tmp_path.glob("core-hang-*.txt")]) and time.monotonic() < ends_s:
            time.sleep(0.2)
        time.sleep(2.5)
    finally:
        watching.close()
    signal.raise_signal(SIGNAL)  # of a rank that doesn't know yet
    told = capfd.readouterr().err
    assert told.count("s. No rank waits for another, and the run goes on: rank 0 ") == 1
    assert f"All stacks: {reports[0]}" in told
    assert watching.ending.error is None


def test_a_folder_is_a_board(tmp_path):
    board = FolderBoard(tmp_path)
    board.write("seen/1", WAITS.to_text())
    assert board.read(["seen/0", "seen/1"]) == ["", WAITS.to_text()]
    assert Account.from_text(WAITS.to_text()) == WAITS
    assert [board.is_first_to_decide(0), board.is_first_to_decide(0), board.is_first_to_decide(1)] == [1, 0, 1]


def test_the_verdict_of_a_worker_is_the_launchers_error():
    ranks = [WAITS.whereabouts(), account(1, "asleep").whereabouts()]
    error = HangError("Rank 1 is asleep.", absent=[1], ranks=ranks, report="/a")
    report = Report.from_message(Report.of(error).to_message())
    found = worker_error(0, 1, report)
    assert isinstance(found, HangError)
    assert (found.rank, found.absent, found.ranks, found.report) == (1, (1,), tuple(ranks), "/a")
    assert not report.is_echo


def test_options_come_from_the_argument_and_the_environment(monkeypatch):
    monkeypatch.setattr(options, "is_debugged", lambda: False)
    monkeypatch.delenv("CORE_WATCH", raising=False)
    assert options.chosen(None) == options.chosen(True) == Watch()
    assert options.chosen(False) is None
    for wish, expected in {
        "off": None,
        "report": Watch(ends_run=False),
        "90": Watch(limit=timedelta(seconds=90)),
        "on": Watch(),
    }.items():
        monkeypatch.setenv("CORE_WATCH", wish)
        assert options.chosen(None) == expected
    monkeypatch.setenv("CORE_WATCH", "soon")
    with pytest.raises(ConfigurationError, match="CORE_WATCH='soon': expected off, report, or a number of seconds"):
        options.chosen(None)
    with pytest.raises(ConfigurationError, match=r"watch=30: expected True, False, or core\.Watch"):
        options.chosen(30)
    with pytest.raises(ConfigurationError, match="expected a timedelta above 0"):
        Watch(limit=timedelta())


def test_native_code_may_end_the_process_before_the_group_is_left(monkeypatch):
    """To leave a group is to join its threads under Python's lock, for which one of them would wait."""
    order = []
    watching = SimpleNamespace(pid=os.getpid(), let_abort=lambda: order.append("let abort"))
    monkeypatch.setattr(run, "_watching", [watching])
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.setup(nn.Linear(1, 1))
    monkeypatch.setattr(fabric.strategy, "teardown", lambda: order.append("left"))
    fabric.teardown()
    assert order == ["let abort", "left"]


def test_a_debugger_turns_the_watch_off():
    before = sys.gettrace()
    sys.settrace(lambda *event: None)
    try:
        assert options.is_debugged()
    finally:
        sys.settrace(before)
    assert not options.is_debugged() or before is not None
