"""The launchers that make processes by spawn, fork and forkserver."""

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

METHODS = ["spawn", "fork", "forkserver"]


@pytest.fixture
def own_temporary_directory(monkeypatch):
    """With a short path: multiprocessing's server listens to a socket in it, and a socket's path
    has 107 characters.
    """
    with tempfile.TemporaryDirectory(prefix="core-") as path:
        monkeypatch.setenv("TMPDIR", path)
        yield Path(path)


def left_in(folder):
    """All but what torch itself makes there."""
    return [path for path in folder.iterdir() if not path.name.startswith("torchinductor_")]


@pytest.mark.parametrize("method", METHODS)
def test_the_result_of_rank_0_comes_back(program, own_temporary_directory, method):
    work = """
import torch

def work(environment, model=None):
    join(environment)
    total = torch.tensor([environment.global_rank() + 1])
    dist.all_reduce(total)
    if model is not None:
        with torch.no_grad():
            model.weight += environment.global_rank()
        dist.barrier()
    dist.destroy_process_group()
    return {"rank": environment.global_rank(), "total": total, "model": model}
"""
    done = program(
        work
        + """
if __name__ == "__main__":
    model = torch.nn.Linear(2, 2)
    before = model.weight.clone()
    launcher = connected(MultiprocessingLauncher(sys.argv[1]))
    for _ in range(1 if sys.argv[1] == "spawn" else 2):
        result = launcher.launch(work, launcher.cluster_environment, model=model)
        say(result["rank"], result["total"].item(), torch.equal(result["model"].weight, before),
            torch.equal(model.weight, before))
    say(launcher.calls_in_place, launcher.pickles)
""",
        method,
    ).finish()
    assert done.code == 0, done.errors
    # Rank 1 adds 1 to its weights: were they shared memory, rank 0 and the caller would see it.
    assert done.output.splitlines() == ["0 3 True True"] * (1 if method == "spawn" else 2) + [
        f"False {method != 'fork'}"
    ]
    assert not left_in(own_temporary_directory)


def test_an_exception_ends_the_others_and_is_named(program, own_temporary_directory):
    done = program(
        """
        import torch
        from core.contract import WorkerError

        def work(environment):
            join(environment)
            if environment.global_rank() == 1:
                dist.recv(torch.ones(1), 0)
                raise ValueError("boom in rank 1")
            try:
                dist.send(torch.ones(1), 1)
                dist.all_reduce(torch.ones(1))
            finally:
                say("rank 0 cleans up")

        if __name__ == "__main__":
            launcher = connected(MultiprocessingLauncher("spawn"))
            try:
                launcher.launch(work, launcher.cluster_environment)
            except WorkerError as error:
                say(error.rank, error.exit_code, "boom" in error.worker_traceback)
                raise
        """
    ).finish()
    assert (done.code, done.output) == (1, "rank 0 cleans up\n1 1 True\n")
    first = done.errors.index('raise ValueError("boom in rank 1")')
    assert first < done.errors.index("WorkerError: Rank 1 failed with ValueError: boom in rank 1")
    assert "gloo" not in done.errors, "the others' lost connections are not shown"
    assert not left_in(own_temporary_directory)


@pytest.mark.slow
def test_a_cause_that_takes_long_to_end_is_named_before_its_effects(program):
    done = program("""
        import threading
        import torch

        def work(environment):
            join(environment)
            if environment.global_rank() == 1:
                dist.destroy_process_group()
                threading.Thread(target=time.sleep, args=[600]).start()  # as one that sends what was logged
                raise ValueError("boom in rank 1")
            dist.all_reduce(torch.ones(1))

        if __name__ == "__main__":
            launcher = connected(MultiprocessingLauncher("fork"))
            launcher.launch(work, launcher.cluster_environment)
        """).finish()
    assert done.code == 1
    assert done.errors.splitlines()[-1].endswith(
        "WorkerError: Rank 1 failed with ValueError: boom in rank 1"
    )


def test_a_rank_that_is_not_connected_gets_an_exception_with_the_cause(program):
    done = program("""
        def work(environment):
            ready = __file__ + ".ready"
            if environment.global_rank() == 1:
                while not os.path.exists(ready):  # the other rank may still be starting
                    time.sleep(0.05)
                os.kill(os.getpid(), 9)
            try:
                open(ready, "w").close()
                rest()
            except BaseException as error:
                say(type(error).__name__, error)
                raise

        if __name__ == "__main__":
            launcher = connected(MultiprocessingLauncher("fork"))
            launcher.launch(work, launcher.cluster_environment)
        """).finish(timeout_s=60)
    assert done.code == 1
    assert done.output.startswith(
        "WorkerError Rank 1 ended first, and this rank stops because of it. Rank 1 was killed"
    )
    assert "WorkerError: Rank 1 was killed by SIGKILL" in done.errors


def test_the_code_of_a_worker_that_exits_is_kept(program):
    done = program("""
        from core.contract import WorkerError

        if __name__ == "__main__":
            launcher = connected(MultiprocessingLauncher("fork"))
            try:
                launcher.launch(sys.exit, 3)
            except WorkerError as error:
                say(error.exit_code, error.worker_traceback)
        """).finish()
    assert (done.code, done.output) == (0, "3 None\n")


@pytest.mark.parametrize(
    ("method", "number", "code"),
    [("fork", signal.SIGTERM, 143), ("spawn", signal.SIGINT, -signal.SIGINT)],
)
def test_a_terminated_run_leaves_nothing(program, own_temporary_directory, method, number, code):
    running = program(
        """
        def work():
            try:
                say("at work")
                rest()
            finally:
                say("cleans up")

        if __name__ == "__main__":
            connected(MultiprocessingLauncher(sys.argv[1])).launch(work)
        """,
        method,
    )
    running.await_line("at work")
    running.await_line("at work")
    os.kill(running.process.pid, number)
    done = running.finish()
    assert done.code == code, done.errors
    assert done.output.count("cleans up") == 2
    assert not running.survivors()
    assert not left_in(own_temporary_directory)


def test_a_signal_between_the_start_of_the_workers_and_the_wait_for_them_ends_them(program):
    done = program("""
        from core.launch import multiprocessing

        class Group(multiprocessing.WorkerGroup):
            def __init__(self, *args):
                os.kill(os.getpid(), 15)
                super().__init__(*args)

        multiprocessing.WorkerGroup = Group
        if __name__ == "__main__":
            connected(MultiprocessingLauncher("fork")).launch(rest)
        """).finish(timeout_s=20)
    assert done.code == 143, done.errors


def test_a_signal_to_a_worker_that_is_being_forked_is_not_lost(program):
    done = program("""
        from core.contract import WorkerError

        if __name__ == "__main__":
            os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), 2))
            try:
                connected(MultiprocessingLauncher("fork")).launch(rest)
            except WorkerError as error:
                say(error.exit_code)
        """).finish(timeout_s=20)
    assert done.output == "130\n", done.errors


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_die_with_the_main_process(program, own_temporary_directory, method):
    running = program(
        """
        def work():
            try:
                say("at work")
                rest()
            finally:
                say("cleans up")

        if __name__ == "__main__":
            connected(MultiprocessingLauncher(sys.argv[1])).launch(work)
        """,
        method,
    )
    running.await_line("at work")
    running.await_line("at work")
    running.signal(signal.SIGKILL)
    running.await_line("cleans up")
    running.await_line("cleans up")
    assert not running.survivors()
    assert not list(own_temporary_directory.glob("core-launch-*"))


def test_what_does_not_pickle_is_named(program):
    done = program("""
        class Strategy:
            def __init__(self):
                self._options = {"timeout": 3, "hook": lambda state, bucket: bucket}

            def run(self, batch):
                pass

        if __name__ == "__main__":
            launcher = connected(MultiprocessingLauncher("spawn"))
            launcher.launch(Strategy().run, 1)
        """).finish()
    assert done.code == 1
    assert (
        "LaunchError: The start method 'spawn' pickles what its workers need, and "
        "strategy._options['hook'] can't" in (done.errors)
    )
    assert "Define it at the top level of a module" in done.errors


def test_fork_needs_no_pickling_and_collects_only_what_is_its_own(program):
    done = program("""
        import gc
        gc.unfreeze()
        local = 5
        say(connected(MultiprocessingLauncher("fork")).launch(lambda: (local, gc.get_freeze_count() > 10_000)))
        say(gc.get_freeze_count())
        """).finish()
    assert (done.code, done.output) == (0, "(5, True)\n0\n"), done.errors


def test_an_unpicklable_result_is_an_error_of_rank_0(program):
    done = program("""
        connected(MultiprocessingLauncher("fork")).launch(lambda: {"loss": 1.0, "hooks": [lambda: None]})
        """).finish()
    assert done.code == 1
    assert "WorkerError: Rank 0 failed with" in done.errors
    assert (
        "LaunchError: What the function returns on rank 0 is pickled for the caller, and "
        "result['hooks'][0] can't be: " in (done.errors)
    )


def test_a_missing_main_guard_is_an_error_of_the_workers(program):
    done = program("""
        connected(MultiprocessingLauncher("spawn")).launch(print, "launched")
        """).finish()
    assert (done.code, done.output) == (1, "")
    assert "LaunchError: This process was started to run a part of the program" in done.errors
    assert 'if __name__ == "__main__":' in done.errors


def test_spawn_from_a_program_without_a_file_is_refused(program):
    source = (
        "from helpers import *\n"
        "connected(MultiprocessingLauncher('spawn'), interactive_alias='good_alias').launch(print, "
        "'launched')\n"
    )
    done = program("", command=[sys.executable, "-c", source]).finish()
    assert done.code == 1
    assert "runs from python -c, and the start method 'spawn' has to import its file" in done.errors
    assert 'pass strategy="good_alias"' in done.errors


@pytest.mark.slow
def test_fork_works_without_a_file(program):
    source = (
        "from helpers import "
        "*\nprint(connected(MultiprocessingLauncher('fork')).launch(lambda: 'done'))\n"
    )
    done = program("", command=[sys.executable, "-c", source]).finish()
    assert (done.code, done.output) == (0, "done\n"), done.errors


def test_fork_with_other_threads_is_refused(program):
    done = program("""
        import threading

        threading.Thread(target=time.sleep, args=(5,), name="prefetch", daemon=True).start()
        connected(MultiprocessingLauncher("fork")).launch(print, "launched")
        """).finish()
    assert done.code == 1
    assert "LaunchError: This process has other threads (prefetch)" in done.errors
    assert "use the start method 'spawn'" in done.errors


def test_fork_after_openmp_was_used(program):
    """GNU's OpenMP hangs in a forked worker that uses more than one thread."""
    done = program("""
        import torch

        def work():
            return torch.ones(2_000_000).mul(2).sum().item(), torch.get_num_threads()

        torch.set_num_threads(2)
        work()
        say(connected(MultiprocessingLauncher("fork")).launch(work))
        """).finish()
    assert (done.code, done.output) == (0, "(4000000.0, 1)\n"), done.errors


def test_a_worker_that_launches_is_refused(program):
    done = program("""
        def inner():
            connected(MultiprocessingLauncher("fork")).launch(print, "launched")

        connected(MultiprocessingLauncher("fork")).launch(inner)
        """).finish()
    assert done.code == 1
    assert (
        "a process that multiprocessing made, and it can't launch processes of its own"
        in done.errors
    )


@pytest.mark.slow
def test_a_rank_that_leaves_with_code_0_is_a_failure(program, own_temporary_directory):
    done = program("""
        from core.contract import WorkerError

        def work(environment, rank, leave):
            if environment.global_rank() == rank:
                leave(0)
            rest()

        launcher = connected(MultiprocessingLauncher("fork"))
        for rank, leave in ((1, sys.exit), (0, os._exit)):
            try:
                launcher.launch(work, launcher.cluster_environment, rank, leave)
            except WorkerError as error:
                say(error.rank, error.exit_code, error)
        """).finish()
    assert done.code == 0, done.errors
    assert [line.partition(", and the other")[0] for line in done.output.splitlines()] == [
        f"{rank} 0 Rank {rank} exited with code 0 in the middle of launch 1" for rank in (1, 0)
    ]
    assert not left_in(own_temporary_directory)
