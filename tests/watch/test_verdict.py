"""The decision itself, without ranks: who doesn't come, and when nobody may be accused."""

import importlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore

from core import ConfigurationError, HangError, WatchdogOptions
from core.contract.world import World
from core.launch.worker_failure import WorkerFailure, worker_error
from core.watch import kernel, options, standstill
from core.watch.decision import StandstillWarnings
from core.watch.kernel import process_state
from core.watch.local_ranks import LocalRanks, line_in
from core.watch.phases import Heartbeat, heartbeat, phase
from core.watch.rank_status import RankStatus
from core.watch.standstill import Standstill
from core.watch.termination import SIGNAL
from core.watch.thread_sampler import ThreadSampler
from core.watch.users_code import innermost
from core.watch.verdict import find
from core.watch.watchdog import Watchdog
from core_testing.waiting import wait_until


def status(rank, state, since_s=40.0, **more):
    limits = {"warn_after_s": 30.0, "end_after_s": 300.0, "least_s": 10.0}
    return RankStatus(rank, state, **{"phase": "step", "since_s": since_s} | limits | more)


WAITS = status(0, "waits", collective="gloo:all_reduce [[10]]", line="a.py:1 in f", is_usual=True)
BARRIER = status(1, "waits", line="a.py:2 in f", collective="gloo:barrier []")


def test_a_rank_that_made_one_call_more_is_named_where_all_wait_in_the_same():
    behind = [replace(WAITS, rank=rank, num_calls=7) for rank in (0, 2)]
    ahead = replace(WAITS, rank=1, num_calls=8)
    verdict = find([behind[0], ahead, behind[1]])
    assert (verdict.absent, verdict.ends) == ((1,), True)
    assert "these made one before it that the others did not" in verdict.reason
    assert find([behind[0], replace(ahead, since_s=9.0), behind[1]]) is None


@pytest.mark.parametrize(
    ("statuses", "absent", "says"),
    [
        (
            [WAITS, status(1, "asleep", line="a.py:9 in g")],
            (1,),
            "rank 1 is asleep at a.py:9 in g, phase step",
        ),
        ([WAITS, status(1, "stopped"), status(2, "asleep")], (1,), "rank 1 is stopped by a signal"),
        ([WAITS, status(1, "asleep", 29.0)], None, ""),
        # It made progress not long ago, though it waits now.
        ([replace(WAITS, since_s=5.0), status(1, "asleep")], None, ""),
        ([WAITS, status(1, "asleep"), status(2, "computes", warn_after_s=90.0)], None, ""),
        # Nobody waits.
        (
            [status(0, "asleep"), status(1, "stopped")],
            (0, 1),
            "no rank waits for another: rank 0 is asleep, phase",
        ),
        ([status(0, "asleep"), status(1, "computes", warn_after_s=300.0)], None, ""),
        (
            [status(0, "asleep"), status(1, "left")],
            (0,),
            "no rank waits for another: rank 0 is asleep",
        ),
        ([status(0, "left"), status(1, "left")], None, ""),
        ([WAITS, status(1, "debugged")], None, ""),
        ([WAITS, replace(WAITS, rank=1, is_usual=False)], (0, 1), "look at the network"),
        ([WAITS, replace(WAITS, rank=1, since_s=20.0, is_usual=False)], None, ""),
    ],
)
def test_a_standstill_is_told_after_the_limit_and_ends_the_run_later(statuses, absent, says):
    verdict = find(statuses)
    if absent is None:
        assert verdict is None
        return
    assert (verdict.absent, verdict.ends) == (absent, False)
    assert says in verdict.reason
    later = [replace(each, since_s=301.0) for each in statuses]
    assert find(later).ends
    at_work = replace(later[0], end_after_s=600.0)  # one that may yet make progress is enough
    assert not find([at_work, *later[1:]]).ends


@pytest.mark.parametrize(
    ("statuses", "absent", "says"),
    [
        ([WAITS, status(1, "left")], (1,), "rank 1 has left the run"),
        ([WAITS, status(1, "gone")], (1,), "rank 1 is gone: its process has ended"),
        ([replace(WAITS, since_s=9.0), status(1, "gone")], None, ""),
        (
            [WAITS, replace(BARRIER, since_s=12.0)],
            (1,),
            "in another collective",
        ),
        ([WAITS, replace(BARRIER, since_s=9.0)], None, ""),
        (
            [WAITS, status(1, "waits", line="a.py:1 in f", collective="gloo:all_reduce [[9]]")],
            (1,),
            "in the same call, with other shapes",
        ),
        # The stages of two pipelines: rank 1 waits for rank 3, which makes another call; 0 and 2
        # are done.
        (
            [
                replace(WAITS, collective="gloo:all_reduce [[4]]"),
                status(
                    1,
                    "waits",
                    line="a.py:7 in f",
                    awaits="the output of stage 1, of rank 3",
                    awaited_ranks=(3,),
                ),
                replace(WAITS, rank=2, collective="gloo:all_reduce [[5]]"),
                replace(BARRIER, rank=3),
            ],
            (3,),
            "in another call than the others: rank 3 waits for the others at a.py:2 in f "
            "(gloo:barrier []), phase step"
            ", for 40 s; while rank 0 waits for the others at a.py:1 in f (gloo:all_reduce [[4]]), "
            "phase step, for 40 s; rank 1 waits for the output of stage 1, of rank 3 at a.py:7 in "
            "f, phase step",
        ),
        # Two are waited for, and one of these has made this call before.
        (
            [
                status(0, "waits", line="a.py:7 in f", awaited_ranks=(2,)),
                status(1, "waits", line="a.py:7 in f", awaited_ranks=(3,)),
                replace(WAITS, rank=2),
                replace(BARRIER, rank=3),
            ],
            (3,),
            "in another call than the others: rank 3 waits",
        ),
        (
            [
                status(
                    0,
                    "waits",
                    line="a.py:7 in f",
                    awaits="a gradient, of rank 1",
                    awaited_ranks=(1,),
                ),
                status(
                    1,
                    "waits",
                    line="a.py:8 in f",
                    awaits="an output, of rank 0",
                    awaited_ranks=(0,),
                ),
            ],
            (0, 1),
            "ranks wait for each other: rank 0 waits for a gradient, of rank 1 at a.py:7 in f",
        ),
        # New to both: nothing tells which one has gone astray, and both are shown.
        (
            [replace(WAITS, is_usual=False), BARRIER],
            (0, 1),
            "in different collectives, and nothing tells who went astray: rank 0 waits for the "
            "others at a.py:1 in f (gloo:all_reduce [[10]]), phase step, for 40 s; rank 1 waits "
            "for the others at a.py:2 in f (gloo:barrier",
        ),
        # Two of three went one way.
        (
            [
                replace(WAITS, is_usual=False),
                BARRIER,
                replace(WAITS, rank=2, is_usual=False),
            ],
            (1,),
            "rank 1 waits for the others at a.py:2 in f (gloo:barrier []), phase step, for 40 s; "
            "while rank 0 waits for the others at a.py:1 in f (gloo:all_reduce [[10]]), phase "
            "step, for 40 s (and 1 more there)",
        ),
        (
            [WAITS, status(1, "waits", phase="end of epoch", line="a.py:1 in f")],
            (1,),
            "out of data",
        ),
        # Under `if trainer.is_global_zero`.
        *[
            (
                [
                    replace(WAITS, phase="checkpoint"),
                    status(1, "waits", phase=other, line="a.py:1 in f"),
                ],
                (0,),
                "in a checkpoint, to which the others don't come: rank 0 waits for the others at "
                "a.py:1 in f (gloo:all_"
                "reduce [[10]]), phase checkpoint, for 40 s; while rank 1 waits for the others at "
                f"a.py:1 in f, phase {other}, for 40 s. All ranks must save",
            )
            for other in ("end of epoch", "step")
        ],
        (
            [
                *[
                    status(rank, "waits", phase="checkpoint", collective="gloo:all_gather [[1]]")
                    for rank in (0, 1)
                ],
                status(2, "waits", line="a.py:9 in g", collective="gloo:barrier []"),
            ],
            (2,),
            "in another collective than the others: rank 2 waits for the others at a.py:9 in g "
            "(gloo:barrier [])",
        ),
    ],
)
def test_what_can_not_match_any_more_ends_the_run_at_once(statuses, absent, says):
    verdict = find(statuses)
    if absent is None:
        assert verdict is None
    else:
        assert (verdict.absent, verdict.ends) == (absent, True)
        assert says in verdict.reason


def test_the_limits_follow_the_runs_own_phases(monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(standstill.time, "monotonic", lambda: now_s)
    own = Heartbeat()
    own.phase = "step"
    watched = Standstill(own, 30.0, 300.0)

    def stand(seconds, *, is_waiting=False, is_at_work=False):
        nonlocal now_s
        for _ in range(seconds):
            now_s += 1.0
            watched.look()
            watched.note(is_waiting=is_waiting, is_at_work=is_at_work)
        return watched.warn_after_s, watched.end_after_s

    def move():
        own.count += 1
        assert watched.look() == 0.0

    # The first step has the same limits as any other one.
    assert stand(40) == (30.0, 300.0)
    assert watched.since_s == 40.0
    assert stand(10, is_at_work=True) == (30.0, 350.0)
    assert stand(10) == (30.0, 350.0)
    assert stand(3000, is_at_work=True) == (30.0, 3000.0)
    move()
    assert stand(1)[0] == 6120.0  # twice what it has survived; a shorter one has no part in it
    own.phase = "checkpoint"
    move()
    # for another rank, which is no time of its own
    assert stand(35, is_waiting=True) == (30.0, 300.0)
    stand(20)
    move()
    assert stand(1) == (30.0, 300.0)
    stand(40)
    move()
    assert stand(1) == (82.0, 300.0)
    now_s += 1000.0  # the process was held
    assert watched.look() < 5.0
    now_s += 1.0
    assert watched.look(num_collectives=7) == 0.0  # a loop that marks nothing


def test_a_phase_marks_its_beginning_and_its_end():
    heartbeat.begin()
    with suppress(OSError), phase("checkpoint", line="a.py:1 in f"):
        assert (heartbeat.phase, heartbeat.line, heartbeat.count) == (
            "checkpoint",
            "a.py:1 in f",
            1,
        )
        raise OSError("full")
    assert (heartbeat.phase, heartbeat.line, heartbeat.count) == ("set-up", "", 2)


def test_the_state_and_line_of_a_thread_are_seen():
    ready, goes_on, numbers = threading.Event(), threading.Event(), []

    def sleep():
        numbers.extend([threading.get_ident(), threading.get_native_id()])
        ready.set()
        goes_on.wait()

    thread = threading.Thread(target=sleep)
    thread.start()
    ready.wait()
    sampler = ThreadSampler(*numbers)
    time.sleep(0.1)
    sight, stack = sampler.sample(), sampler.stack()
    goes_on.set()
    thread.join()
    assert sight.state in ("asleep", "works")  # pytest's own threads may be at work
    assert sight.line == f"{__file__}:{sleep.__code__.co_firstlineno + 3} in sleep"
    assert "goes_on.wait()" in stack
    assert process_state(os.getpid()) == "R"
    assert process_state(2**22 + 1) == "Z"


def sampled(function, num_samples=12, without=()):
    """Samples of a thread that runs a function, until it has ended."""
    ready, numbers, samples = threading.Event(), [], []

    def run():
        numbers.extend([threading.get_ident(), threading.get_native_id()])
        ready.set()
        function()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    sampler = ThreadSampler(*numbers)
    while thread.is_alive():
        time.sleep(0.1)
        samples.append(sampler.sample(without))
    thread.join()
    return samples


@pytest.mark.skipif(not kernel.can_see(), reason="no /proc")
def test_a_rank_that_waits_for_the_work_of_a_grandchild_works():
    grandchild = (
        "import time\nends = time.process_time() + 1\nwhile time.process_time() < ends: pass"
    )
    command = f"{shlex.quote(sys.executable)} -c '{grandchild}' | cat"
    samples = sampled(lambda: subprocess.run(["sh", "-c", command], check=True))
    # as it works, and not only once it has ended
    assert sum(each.is_at_work for each in samples) > 4


def test_where_nothing_can_be_seen_a_rank_is_not_called_asleep(monkeypatch):
    monkeypatch.setattr(kernel, "PROC", "/nowhere")
    samples = sampled(lambda: time.sleep(0.5))
    assert {each.state for each in samples} <= {"unseen", "works", "computes"}
    assert all(each.is_at_work for each in samples)
    assert not kernel.is_gone(os.getpid())
    assert kernel.process_state(2**22 + 1) == "Z"  # that can be asked without it


def test_a_rank_that_holds_pythons_lock_is_looked_at_from_outside():
    """Its own threads can't answer. It shows its stack, and its sleep isn't cut short."""
    program = (
        "import ctypes, faulthandler, signal, sys, threading, time\n"
        "file = open(sys.argv[1], 'w')\n"
        "signal.signal(signal.SIGURG, lambda *event: None)\n"
        "faulthandler.register(signal.SIGURG, file, all_threads=True, chain=True)\n"
        "watcher = threading.Thread(target=time.sleep, args=(60,), daemon=True)\n"
        "watcher.start()\n"
        "sleep = ctypes.PyDLL(None).sleep\n"
        # what is left
        "print(threading.get_ident(), watcher.native_id, flush=True); print(sleep(3), flush=True)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        script, stacks = Path(folder, "program.py"), Path(folder, "stacks")
        script.write_text(program, encoding="utf-8")
        with subprocess.Popen(
            [sys.executable, script, stacks], stdout=subprocess.PIPE, text=True
        ) as process:
            thread, watcher = map(int, process.stdout.readline().split())
            last = status(1, "asleep", pid=process.pid, stacks=str(stacks))
            last = replace(last, thread=thread, watcher=watcher)
            local_ranks, seen = LocalRanks(300.0), last
            wait_until(
                lambda: kernel.process_state(process.pid) == "S",
                "sleep of the process that has printed",
            )
            while process.poll() is None and not seen.line:  # written thread by thread
                seen = local_ranks.examine(last, WAITS)
                time.sleep(0.05)
            slept = process.stdout.read()
        assert seen.line == f"{script}:8 in <module>"
        assert seen.state in ("silent", "computes")  # under load it may not sleep yet
        assert (seen.warn_after_s, slept.split()) == (30.0, ["0"])
        assert local_ranks.examine(last, WAITS).state == "gone"


def test_what_faulthandler_writes_is_read():
    text = (
        f'Thread 0x{7:016x} (most recent call first):\n  File "{os.__file__}", line 1 in wait\n'
        '  File "/a/b.py", line 7 in train\n\n'
        f'Current thread 0x{2:016x} (most recent call first):\n  File "/usr/x.py", line 3 in '
        "watch\n"
    )
    assert line_in(text, 7) == "/a/b.py:7 in train"
    assert line_in("", 7) == line_in(text, 3) == ""


@pytest.mark.parametrize("folder", ["", "lib/python3/site-packages"])
def test_the_users_own_package_is_known_wherever_it_is(tmp_path, monkeypatch, folder):
    """Also one that is installed; a library that it calls isn't."""
    for name, text in {
        "acme_user/net.py": "import core\nimport library_of_others\ndef step(): return "
        "library_of_others.wait()\n",
        "acme_user/__init__.py": "",
        "library_of_others.py": "import sys\ndef wait(): return sys._getframe()\n",
    }.items():
        path = tmp_path / (folder if name.startswith("acme_user") else "site-packages") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for place in (tmp_path / folder, tmp_path / "site-packages"):
        monkeypatch.syspath_prepend(str(place))
    net = importlib.import_module("acme_user.net")
    try:
        frame = net.step()
        place = innermost([frame, frame.f_back, sys._getframe()])
        assert place == 1
    finally:
        for name in ("acme_user.net", "acme_user", "library_of_others"):
            sys.modules.pop(name, None)


def test_a_standstill_is_told_once_and_a_line_says_when_it_is_over(tmp_path, capfd):
    options = WatchdogOptions(
        limit=timedelta(seconds=1), end_after=timedelta(minutes=5), folder=tmp_path
    )
    watchdog = Watchdog(options, HashStore(), World(), 0)
    try:
        reports = wait_until(lambda: [*tmp_path.glob("core-hang-*.txt")], "a report")
        time.sleep(1.5)  # it could be told again
        heartbeat.count += 1
        told = wait_until_told(capfd, "make progress again")
    finally:
        watchdog.close()
    signal.raise_signal(SIGNAL)  # of a rank that doesn't know yet
    assert told.count("s. No rank waits for another: rank 0 ") == 1
    assert (
        f"All stacks: {reports[0]}\nThe run goes on. It ends if this lasts for 0:05:00, or ten "
        "times that" in told
    )
    assert told.count("core: The ranks make progress again, after ") == 1
    assert watchdog.termination.error is None


@pytest.mark.parametrize(
    "place", ["<frozen importlib._bootstrap>", "/torch/_inductor/compile_fx.py"]
)
def test_a_rank_that_imports_or_compiles_is_one_line_and_no_report(tmp_path, capfd, place):
    loads = status(1, "computes", stack=f'  File "{place}", line 7, in load\n', line="a.py:3 in f")
    works = replace(
        loads, stack=f'{loads.stack}  File "/core/trainer/loops/fit.py", line 7, in run\n'
    )
    for other, num_lines in ((loads, 1), (replace(loads, state="asleep"), 5), (works, 5)):
        statuses = [WAITS, other]
        warnings = StandstillWarnings(WatchdogOptions(folder=tmp_path))
        for _ in range(2):
            warnings.warn(find(statuses), statuses)
        shown = capfd.readouterr().err
        assert shown.count("\n") == num_lines
        assert "rank 1" in shown
    assert len([*tmp_path.iterdir()]) == 2


def wait_until_told(capfd, text):
    """All that is written to stderr until that."""
    told = []

    def read():
        told.append(capfd.readouterr().err)
        return "".join(told) if text in "".join(told) else ""

    return wait_until(read, text)


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_ends_while_it_is_said_to_stand_still_says_that_it_has_gone_on(
    tmp_path, capfd, fails
):
    """With an error it hasn't."""
    options = WatchdogOptions(
        limit=timedelta(seconds=1), end_after=timedelta(minutes=5), folder=tmp_path
    )
    watchdog = Watchdog(options, HashStore(), World(), 0)
    told = wait_until_told(capfd, "The run goes on.")
    try:
        if fails:
            raise ValueError
        watchdog.close()
    except ValueError:
        watchdog.close()
    told += capfd.readouterr().err
    assert told.count("The ranks have made no progress for ") == 1
    assert told.count("core: The ranks make progress again, after ") == (not fails)


def test_the_verdict_of_a_worker_is_the_launchers_error():
    ranks = [WAITS.location(), status(1, "asleep").location()]
    error = HangError("Rank 1 is asleep.", absent=[1], ranks=ranks, stacks_path="/a")
    report = WorkerFailure(**asdict(WorkerFailure.of(error)))
    found = worker_error(0, 1, report)
    assert isinstance(found, HangError)
    assert (found.rank, found.absent, found.ranks, found.stacks_path) == (
        1,
        (1,),
        tuple(ranks),
        "/a",
    )
    assert not report.is_echo


def test_options_come_from_the_argument_and_the_environment(monkeypatch):
    monkeypatch.setattr(options, "is_debugged", lambda: False)
    monkeypatch.delenv("CORE_WATCH", raising=False)
    assert options.chosen(None) == options.chosen(True) == WatchdogOptions()
    assert options.chosen(False) is None
    for wish, expected in {
        "off": None,
        "report": WatchdogOptions(ends_run=False),
        "90": WatchdogOptions(end_after=timedelta(seconds=90)),
        "5": WatchdogOptions(limit=timedelta(seconds=5), end_after=timedelta(seconds=5)),
        "on": WatchdogOptions(),
    }.items():
        monkeypatch.setenv("CORE_WATCH", wish)
        assert options.chosen(None) == expected
    monkeypatch.setenv("CORE_WATCH", "soon")
    with pytest.raises(
        ConfigurationError, match="CORE_WATCH='soon': expected off, report, or a number of seconds"
    ):
        options.chosen(None)
    with pytest.raises(
        ConfigurationError, match=r"watch=30: expected True, False, or core\.WatchdogOptions"
    ):
        options.chosen(30)
    with pytest.raises(ConfigurationError, match="expected a timedelta above 0"):
        WatchdogOptions(limit=timedelta())


def test_a_debugger_turns_the_watch_off():
    before = sys.gettrace()
    sys.settrace(lambda *event: None)
    try:
        assert options.is_debugged()
    finally:
        sys.settrace(before)
    assert not options.is_debugged() or before is not None


def test_a_tracer_turns_the_watch_off():
    program = (
        "import ctypes; from core.watch import options\n"
        "refused = ctypes.CDLL(None).ptrace(0, 0, None, None)\n"  # the parent is the tracer now
        "print(refused, options.is_debugged())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    refused, is_debugged = done.stdout.split()
    if refused != "0":
        pytest.skip("no process may be traced here")
    assert is_debugged == "True"
