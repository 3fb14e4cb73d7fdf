"""The set-up that all tests need."""

import atexit
import gc
import glob
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest import pathlib as names_of_tests

ROOT = Path(__file__).parent

# A shell lets what it starts in the background ignore Ctrl-C, and the programs that tests start
# would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A worker of pytest-xdist runs from `python -c`, which can't be run again for another rank; pytest
# itself can.
if "PYTEST_XDIST_WORKER" in os.environ:
    sys.modules["__main__"].__file__ = str(Path(pytest.__file__).with_name("__main__.py"))

# The thread with which tqdm watches progress bars never ends, and a process with other threads
# isn't forked.
if importlib.util.find_spec("tqdm") is not None:
    import tqdm

    tqdm.tqdm.monitor_interval = 0

# Helpers beside tests are importable, in worker processes too, which get their `sys.path` from the
# parent.
sys.path[:0] = map(str, [ROOT / "tests", *sorted(ROOT.glob("plugins/*/tests"))])

# pytest asks if plugins/wandb/tests/test_wandb.py is wandb.tests.test_wandb, and Python imports
# wandb for an answer: all libraries that plugins are named after, in each worker. Of files there
# only names without a parent can be right.
_is_importable = names_of_tests.is_importable
names_of_tests.is_importable = lambda name, path: (
    not ("." in name and path.is_relative_to(ROOT / "plugins")) and _is_importable(name, path)
)

_OF_A_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
_NEW_MODULES = 100
_num_modules = 0
_is_worker = "PYTEST_XDIST_WORKER" in os.environ
_has_passed = False


def pytest_configure(config: pytest.Config) -> None:
    """Give all temporary files a folder, which ends with a run that passes: what is killed can't
    delete its own.

    GPUs are hidden but from a run of what is marked for them: `accelerator="auto"` means the CPU in
    all other tests.
    """
    if glob.glob("/dev/nvidia[0-9]*") and "gpu" not in config.getoption("markexpr"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Not again within: sockets have paths of 107 characters at most.
    if not _is_worker and not Path(tempfile.gettempdir()).name.startswith("core-tests-"):
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="core-tests-")
        atexit.register(_remove, tempfile.tempdir, os.getpid())


def pytest_sessionfinish(exitstatus: int) -> None:
    """Note whether a test has failed, whose files may tell why."""
    global _has_passed
    _has_passed = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def _remove(folder: str, process: int) -> None:
    if _has_passed and os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def pytest_runtest_setup() -> None:
    """Import what each forked rank would import, here once. Make collections, also those in forks,
    pass over what imports have left: torch's alone cost 0.2 s each time.
    """
    global _num_modules
    if "core_testing.ranks" in sys.modules:
        import core.session.divergence
        import core.watch.watchdog  # noqa: F401
    if len(sys.modules) >= _num_modules + _NEW_MODULES:
        _num_modules = len(sys.modules)
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """Fail a test that leaves variables of a rank: a later one would take itself for that rank."""
    yield
    left = [name for name in _OF_A_RANK if os.environ.pop(name, None) is not None]
    assert not left, f"it leaves {left}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """One process more than there are cores: tests wait for a fifth of their time. Or what the
    variable says.
    """
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else (os.cpu_count() or 1) + 1
