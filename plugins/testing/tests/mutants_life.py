"""Strategies that leave something behind, forget something, or come in the wrong order."""

import os
import socket
import subprocess
import sys
import tempfile
import threading

import torch
import torch.distributed as dist
from averaging import AveragingStrategy
from table import mutant

from core import Capability, StepOutput

LEFT = "test_teardown_leaves_nothing"
EQUAL = "test_training_equals_one_device[sgd_momentum]"
_process = {"runs": 0, "failed": False}


@mutant("test_declares_what_it_is_pinned_to", expected_capabilities=Capability.COLLECTIVES)
class DeclaresLess(AveragingStrategy):
    """Declares another set of capabilities than its authors have pinned."""


@mutant("test_pickles", passes=EQUAL)
class HoldsALock(AveragingStrategy):
    """Makes a lock when it is made, which doesn't pickle."""

    def __init__(self, **options):
        super().__init__(**options)
        self.lock = threading.Lock()


@mutant("test_making_it_starts_nothing", passes="test_types_and_documents_its_options")
class StartsAThreadAtOnce(AveragingStrategy):
    """Starts a thread when it is made."""

    def __init__(self, **options):
        super().__init__(**options)
        threading.Thread(target=threading.Event().wait, daemon=True, name="watcher").start()


@mutant("test_making_it_starts_nothing", passes=EQUAL)
class SetsAVariableAtOnce(AveragingStrategy):
    """Sets an environment variable when it is made."""

    def __init__(self, **options):
        super().__init__(**options)
        os.environ["MUTANT_WAS_MADE"] = "1"


@mutant("test_calls_come_in_order", passes=EQUAL)
class LoadsBeforeItBuilds(AveragingStrategy):
    """Sets up loaders before the module, so that nothing of the module can be asked for."""

    def setup(self, trainer):
        trainer.setup_dataloaders()
        super().setup(trainer)


@mutant("test_ranks_and_sizes_are_right")
class GivesAllTheFirstShare(AveragingStrategy):
    """Gives every rank the first share of the data."""

    @property
    def data_parallel_rank(self):
        return 0


@mutant("test_models_are_built_on_the_device")
class BuildsNowhere(AveragingStrategy):
    """Has no context in which models can be built."""

    def init_context(self, *, empty=False):
        return None


@mutant("test_runs_twice_in_one_process", passes=EQUAL)
class RemembersTheProcess(AveragingStrategy):
    """Averages in the first run of a process only."""

    def connected(self):
        _process["runs"] += 1

    def exchange(self, gradient):
        if _process["runs"] == 1:
            super().exchange(gradient)


@mutant("test_the_same_instance_runs_twice", passes="test_runs_twice_in_one_process")
class RunsOnce(AveragingStrategy):
    """Averages until its first teardown."""

    torn_down = False

    def teardown(self):
        super().teardown()
        self.torn_down = True

    def exchange(self, gradient):
        if not self.torn_down:
            super().exchange(gradient)


@mutant("test_runs_after_an_exception", passes="test_runs_twice_in_one_process")
class RemembersFailures(AveragingStrategy):
    """Keeps a mark of a run that has failed, and trains otherwise from then on."""

    def teardown(self):
        _process["failed"] |= sys.exception() is not None
        super().teardown()

    def exchange(self, gradient):
        if not _process["failed"]:
            super().exchange(gradient)


@mutant("test_an_exception_arrives_unchanged", passes=EQUAL)
class SwallowsExceptions(AveragingStrategy):
    """Goes on with the next batch when the user's step raises."""

    def run_training_step(self, batch, batch_idx, step):
        try:
            return super().run_training_step(batch, batch_idx, step)
        except Exception:
            return StepOutput(torch.zeros(()), 1, 0)


@mutant("test_a_failing_rank_ends_all", passes=EQUAL)
class EndsInSilence(AveragingStrategy):
    """Ends a rank whose step raises with exit code 0."""

    def run_training_step(self, batch, batch_idx, step):
        try:
            return super().run_training_step(batch, batch_idx, step)
        except ValueError:
            os._exit(0)


@mutant("test_a_killed_rank_ends_all", passes="test_a_failing_rank_ends_all")
class TriesStepsElsewhere(AveragingStrategy):
    """Tries each step in another process first, and doesn't say by which signal that has died."""

    def run_training_step(self, batch, batch_idx, step):
        if step.manual:  # no backward in a fork
            return super().run_training_step(batch, batch_idx, step)
        child = os.fork()
        if child == 0:
            try:
                step.compute_loss(batch, batch_idx)
            finally:
                os._exit(0)
        if os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            raise RuntimeError("a process has ended")
        return super().run_training_step(batch, batch_idx, step)


@mutant("test_a_hanging_rank_is_named", passes="test_barrier_waits")
class HidesWhoIsMissing(AveragingStrategy):
    """Waits by an all-reduce, whose time-out names no rank."""

    def barrier(self, name=None):
        if self.world_size > 1:
            dist.all_reduce(torch.zeros(1))


@mutant("test_bad_options_are_refused", passes=EQUAL)
class TakesAnyOption(AveragingStrategy):
    """Ignores options that it doesn't know."""

    def __init__(self, *, timeout=None, **options):
        super().__init__(timeout=timeout)


@mutant("test_documents_itself", passes=EQUAL)
class WithoutDocstring(AveragingStrategy):
    fault = "Has no docstring."


@mutant("test_types_and_documents_its_options", passes=EQUAL)
class WithUntypedOptions(AveragingStrategy):
    """Has an option without a type."""

    def __init__(self, *, bucket_size=4, **options):
        """Make one.

        Args:
            bucket_size: without meaning.
        """
        super().__init__(**options)


@mutant("test_types_and_documents_its_options", passes=EQUAL)
class WithUndocumentedOptions(AveragingStrategy):
    """Has an option that no docstring describes."""

    def __init__(self, *, bucket_size: int = 4, **options):
        super().__init__(**options)


@mutant("test_teardown_is_idempotent", passes=EQUAL)
class TearsDownOnce(AveragingStrategy):
    """Raises when it is torn down again."""

    ended = False

    def teardown(self):
        assert not self.ended
        self.ended = True
        super().teardown()


@mutant("test_teardown_forgets_modules", passes=EQUAL)
class KeepsModules(AveragingStrategy):
    """Holds on to the model after teardown."""

    def release(self):
        handles = self.session.handles
        super().release()
        self.session.handles = handles


@mutant(f"{LEFT}[process_group]", passes=EQUAL)
class LeavesItsGroup(AveragingStrategy):
    """Stays in the process group."""

    def leave_group(self):
        pass


@mutant(f"{LEFT}[threads]", passes=EQUAL)
class LeavesAThread(AveragingStrategy):
    """Starts a thread that is never ended."""

    def connected(self):
        threading.Thread(target=threading.Event().wait, daemon=True, name="heartbeat").start()


@mutant(f"{LEFT}[child_processes]", passes=EQUAL)
class LeavesAProcess(AveragingStrategy):
    """Starts a process that is never ended."""

    def connected(self):
        # Ends by itself when the rank is gone.
        self.helper = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
        )


@mutant(f"{LEFT}[ports]", passes=EQUAL)
class LeavesAPort(AveragingStrategy):
    """Listens on a port that is never closed."""

    def connected(self):
        _process.setdefault("servers", []).append(socket.create_server(("127.0.0.1", 0)))


@mutant(f"{LEFT}[environment_variables]", passes=EQUAL)
class LeavesAVariable(AveragingStrategy):
    """Sets a variable and doesn't take it back."""

    def connected(self):
        os.environ["MUTANT_RANK"] = str(self.global_rank)


@mutant(f"{LEFT}[temporary_files]", passes=EQUAL)
class LeavesAFile(AveragingStrategy):
    """Makes a temporary file and doesn't delete it."""

    def connected(self):
        os.close(tempfile.mkstemp()[0])
