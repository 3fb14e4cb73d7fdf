"""The launcher that runs the user's script once a rank: what it starts, and how a run ends."""

import os
import re
import signal
import sys

import pytest

LOOP = """
def train(environment):
    join(environment)
    rank = environment.global_rank()
    try:
        for step in range(10_000):
            import torch
            dist.all_reduce(torch.ones(1))
            if step == 3:
                say("rank", rank, "pid", os.getpid())
            time.sleep(0.01)
    except BaseException as error:
        say(f"rank {rank} got {type(error).__name__}: {error}")
        time.sleep(0.5 * (rank == 0))  # the other rank waits in its next collective by then
        raise
    finally:
        say("rank", rank, "cleans up")

launcher = connected(SubprocessScriptLauncher())
launcher.launch(train, launcher.cluster_environment)
say("the script went on")
"""


def pids(running):
    """Wait until both ranks are at work, and return their process ids by rank."""
    found = {}
    while len(found) < 2:
        match = re.search(r"rank (\d) pid (\d+)", running.await_line("pid"))
        found[int(match[1])] = int(match[2])
    return found


def test_every_rank_runs_the_function_and_the_rest_of_the_script(program):
    done = program(
        """
        def work(environment, offset):
            import torch
            join(environment)
            total = torch.tensor([environment.global_rank() + offset])
            dist.all_reduce(total)
            dist.destroy_process_group()
            return environment.global_rank(), environment.local_rank(), environment.node_rank(), total.item()

        launcher = connected(SubprocessScriptLauncher())
        say(sys.argv[1:], launcher.launch(work, launcher.cluster_environment, offset=1))
        """,
        "--lr",
        "a b",
    ).finish()
    assert done.code == 0, done.errors
    assert sorted(done.output.splitlines()) == [
        "['--lr', 'a b'] (0, 0, 0, 3)",
        "['--lr', 'a b'] (1, 1, 0, 3)",
    ]
    assert done.errors == ""


def test_a_relative_script_keeps_interpreter_options(program, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    done = program(
        """
        os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "elsewhere"))
        launcher = connected(SubprocessScriptLauncher())
        say(launcher.launch(lambda: (sys.flags.dev_mode, sys._xoptions, sys.warnoptions[-1:])))
        """,
        command=[sys.executable, "-X", "dev", "-X", "mine=1", "-W", "ignore", "script.py"],
    ).finish()
    assert done.code == 0, done.errors
    assert done.output.splitlines() == ["(True, {'dev': True, 'mine': '1'}, ['ignore'])"] * 2


def test_python_m_package_module(program, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text(
        "from helpers import *\nlauncher = connected(SubprocessScriptLauncher())\n"
        "say(__package__, launcher.launch(lambda: launcher.cluster_environment.global_rank()), "
        "sys.argv[1:])\n"
    )
    done = program("", command=[sys.executable, "-m", "package.train", "--fast"]).finish()
    assert done.code == 0, done.errors
    assert sorted(done.output.splitlines()) == ["package 0 ['--fast']", "package 1 ['--fast']"]


def test_a_later_launch_joins_the_same_workers(program):
    done = program("""
        def work(environment, name):
            import torch
            join(environment, name)
            ones = torch.ones(1)
            dist.all_reduce(ones)
            dist.barrier()
            dist.destroy_process_group()
            return ones.item()

        for name in ("fit", "validate"):  # a launcher and an environment each, as two Trainers have
            launcher = connected(SubprocessScriptLauncher())
            say(name, os.getpid(), launcher.launch(work, launcher.cluster_environment, name))
        """).finish()
    assert done.code == 0, done.errors
    lines = [line.split() for line in done.output.splitlines()]
    assert sorted(name for name, _, _ in lines) == ["fit", "fit", "validate", "validate"]
    assert {total for _, _, total in lines} == {"2.0"}
    assert len({pid for _, pid, _ in lines}) == 2


def test_another_number_of_processes_in_one_script_is_an_error(program):
    done = program("""
        connected(SubprocessScriptLauncher()).launch(lambda: None)
        if os.environ["RANK"] == "0":  # the other rank ends while this one's error is shown
            show = sys.excepthook
            sys.excepthook = lambda *error: (time.sleep(2), show(*error))
        connected(SubprocessScriptLauncher(), num_processes=3).launch(lambda: None)
        """).finish()
    assert done.code == 1
    assert (
        "runs in 2 process(es) since its first launch, and now devices=3 and num_nodes=1 ask for 3"
        in done.errors
    )
    assert "Error in sys.excepthook" not in done.errors
    assert done.errors.count("Traceback (most") <= 2, (
        "rank 0's own, or that of rank 1 and where rank 0 was then"
    )
    assert "Rank 0 then stopped" not in done.errors, "an equal mistake is told once"


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_run(program, victim):
    running = program(LOOP)
    found = pids(running)
    os.kill(found[victim], signal.SIGKILL)
    done = running.finish(timeout_s=10)
    assert not running.survivors(), "nothing is left"
    assert f"rank {1 - victim} cleans up" in done.output, "its finally blocks ran"
    if victim == 1:
        assert done.code == 1
        assert "WorkerError: Rank 1 was killed by SIGKILL" in done.errors.splitlines()[-1]
    else:
        assert done.code == -signal.SIGKILL
    assert "the script went on" not in done.output


def test_a_worker_error_can_be_caught_and_carries_what_is_known(program):
    done = program("""
        from core.contract import WorkerError
        sys.last_value = ValueError("of a test before")  # as pytest leaves it

        def work(environment):
            import torch
            join(environment)
            if environment.global_rank() == 1:
                sys.exit(3)
            dist.all_reduce(torch.ones(1))

        launcher = connected(SubprocessScriptLauncher())
        try:
            launcher.launch(work, launcher.cluster_environment)
        except WorkerError as error:
            say(error.rank, error.exit_code, error)
            sys.exit(error.exit_code)
        """).finish()
    assert (done.code, done.output) == (3, "1 3 Rank 1 exited with code 3.\n")


def test_a_caught_exception_leaves_the_workers_alone(program):
    done = program("""
        def fail():
            raise ValueError("on every rank")

        launcher = connected(SubprocessScriptLauncher())
        try:
            launcher.launch(fail)
        except ValueError:
            pass
        say(launcher.launch(lambda: "second"))
        """).finish()
    assert (done.code, done.output, done.errors) == (0, "second\nsecond\n", "")


def test_a_worker_that_fails_after_the_main_process_has_finished(program):
    done = program("""
        launcher = connected(SubprocessScriptLauncher())
        launcher.launch(lambda: None)
        if launcher.cluster_environment.global_rank() == 1:
            time.sleep(1)
            sys.exit(7)
        """).finish()
    assert done.code == 1
    assert "WorkerError: Rank 1 exited with code 7" in done.errors


def test_a_main_thread_that_is_stuck_in_native_code_is_ended(program):
    done = program("""
        import ctypes

        def work(environment):
            if environment.global_rank() == 1:
                time.sleep(0.5)
                os.kill(os.getpid(), 9)
            native = ctypes.CDLL(None).sem_wait  # waits without the GIL, and goes on waiting after a signal
            semaphore = ctypes.create_string_buffer(64)
            ctypes.CDLL(None).sem_init(semaphore, 0, 0)
            while native(semaphore):
                pass

        launcher = connected(SubprocessScriptLauncher())
        launcher.launch(work, launcher.cluster_environment)
        """).finish(timeout_s=40)
    assert done.code == 1
    assert "WorkerError: Rank 1 was killed by SIGKILL" in done.errors


@pytest.mark.parametrize(
    ("number", "code", "whole_group"),
    [(signal.SIGTERM, 143, True), (signal.SIGINT, -signal.SIGINT, False)],
)
def test_a_terminated_run_says_so(program, number, code, whole_group):
    running = program(LOOP)
    pids(running)
    if whole_group:
        os.killpg(running.process.pid, number)
    else:
        os.kill(running.process.pid, number)
    done = running.finish(timeout_s=20)
    assert done.code == code, done.errors
    assert not running.survivors()
    assert "rank 0 cleans up" in done.output
    assert "rank 1 cleans up" in done.output
    assert "WorkerError" not in done.errors
    if number == signal.SIGTERM:
        assert "Traceback" not in done.errors


@pytest.mark.slow
def test_a_main_process_that_waits_for_a_rank_in_vain_can_be_terminated(program):
    """Its main thread is in a collective, where Python's signal handlers don't run."""
    running = program("""
        def work(environment):
            import torch
            join(environment)
            dist.barrier()
            say("at work")
            if environment.global_rank() == 0:
                dist.all_reduce(torch.ones(1))
            rest()

        launcher = connected(SubprocessScriptLauncher())
        launcher.launch(work, launcher.cluster_environment)
        """)
    running.await_line("at work")
    running.await_line("at work")
    running.signal(signal.SIGTERM)
    done = running.finish(timeout_s=30)
    assert done.code == 143, done.errors
    assert not running.survivors()


def test_forked_copies_of_a_rank_can_come_and_go(program):
    done = program("""
        import multiprocessing, signal

        def work(environment):
            context = multiprocessing.get_context("fork")
            ended = context.Process(target=time.sleep, args=(600,))
            failed = context.Process(target=sys.exit, args=(5,))
            ended.start(), failed.start()
            ended.terminate()
            ended.join(), failed.join()
            if os.fork() == 0:
                raise RuntimeError("only a copy")
            os.wait()
            return ended.exitcode, failed.exitcode

        launcher = connected(SubprocessScriptLauncher())
        say(launcher.launch(work, launcher.cluster_environment))
        say(launcher.launch(lambda: "still here"))
        """).finish()
    assert done.code == 0, done.errors
    lines = done.output.splitlines()
    assert (lines.count("still here"), len(lines)) == (2, 4)
    assert lines.count(f"({-signal.SIGTERM}, 5)") == 2
    assert done.errors.count("RuntimeError: only a copy") == 2


def test_a_forked_copy_that_is_to_end_as_it_begins_ends(program):
    done = program("""
        import signal
        os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))

        def work():
            if (copy := os.fork()) == 0:
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])

        say(connected(SubprocessScriptLauncher()).launch(work))
        """).finish()
    assert (done.code, done.output) == (0, "-15\n-15\n"), done.errors


def test_workers_that_are_still_importing_die_with_the_main_process(program):
    running = program("""
        if "CORE_CHANNEL" in os.environ:
            say("worker imports")
            rest()
        launcher = connected(SubprocessScriptLauncher())
        launcher.launch(rest)
        """)
    running.await_line("worker imports")
    assert len(running.workers()) == 1
    running.signal(signal.SIGKILL)
    assert not running.survivors()


@pytest.mark.parametrize(
    ("command", "stdin", "place"),
    [
        ([sys.executable, "-c"], None, "python -c"),
        ([sys.executable], "source", "standard input"),
    ],
)
def test_a_program_without_a_file_is_refused(tmp_path, program, command, stdin, place):
    source = (
        "from helpers import *\n"
        "connected(SubprocessScriptLauncher(), interactive_alias='good_alias').launch(print, "
        "'launched')\n"
    )
    (tmp_path / "stdin").write_text(source if stdin else "")
    with (tmp_path / "stdin").open() as file:
        done = program("", command=command if stdin else [*command, source], stdin=file).finish()
    assert (
        f"LaunchError: This program runs from {place}, and its processes are made by running"
        in done.errors
    )
    assert (
        'Instead, pass strategy="good_alias", which works here, or put it into a file'
        in done.errors
    )
    assert "launched" not in done.output


def test_a_program_that_a_worker_starts_is_not_a_worker(program):
    done = program("""
        import subprocess

        def work(environment):
            if environment.global_rank() == 1:
                subprocess.run([sys.executable, __file__, "inner"], check=True)

        if sys.argv[1:]:
            say("inner", connected(SubprocessScriptLauncher(), num_processes=1).launch(lambda: "alone"))
        else:
            launcher = connected(SubprocessScriptLauncher())
            launcher.launch(work, launcher.cluster_environment)
        """).finish()
    assert (done.code, done.output) == (0, "inner alone\n"), done.errors


def test_a_rank_that_leaves_in_the_middle_is_a_failure(program):
    done = program("""
        def work(environment):
            if environment.global_rank() == 1:
                os._exit(0)
            rest()

        launcher = connected(SubprocessScriptLauncher())
        launcher.launch(work, launcher.cluster_environment)
        """).finish(timeout_s=30)
    assert done.code == 1
    assert (
        "WorkerError: Rank 1 exited with code 0 in the middle of launch 1, and the other ranks "
        "still needed it. All ranks must make the same calls: look for a sys.exit, an os._exit or "
        "a return that only some of them come to." in done.errors
    )


def test_a_rank_that_never_comes_is_a_failure(program):
    done = program("""
        launcher = connected(SubprocessScriptLauncher())
        rank = launcher.launch(launcher.cluster_environment.global_rank)
        if rank == 1:
            sys.exit(0)
        time.sleep(1)  # nobody needs it yet
        say("goes on")
        launcher.launch(rest)
        """).finish(timeout_s=30)
    assert (done.code, done.output) == (1, "goes on\n")
    assert (
        "WorkerError: Rank 1 exited with code 0 without coming to launch 2, and the other ranks"
        in done.errors
    )


def test_a_rank_that_leaves_the_users_own_loop_is_named_where_others_lose_it(program):
    done = program("""
        import torch

        launcher = connected(SubprocessScriptLauncher(), num_processes=3)
        launcher.launch(join, launcher.cluster_environment)
        for step in range(10):
            if launcher.cluster_environment.global_rank() == 1 and step == 3:
                os._exit(0)
            dist.all_reduce(torch.ones(1))
        """).finish(timeout_s=60)
    assert done.code == 1
    last = done.errors.splitlines()[-1]
    assert (
        "WorkerError: Rank 1 exited with code 0 after launch 1, and the other ranks still needed it"
        in last
    )


def test_ranks_that_leave_together_end_well(program):
    done = program("""
        launcher = connected(SubprocessScriptLauncher())
        launcher.launch(sys.exit, 0)
        """).finish(timeout_s=30)
    assert (done.code, done.errors) == (0, "")
