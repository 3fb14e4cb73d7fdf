"""The conformance suite of launchers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

from core import Launcher
from core_testing.conformance import Conformance
from core_testing.scripts import run_forked

_TIMEOUT_S = 120

# Started as a script of its own, since a launcher may run it again.
_PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path

from core import LAUNCHER_REGISTRY, WorkerError
from core.cluster import LocalEnvironment
from core.launch import rank_variables

options, num_processes, what, folder = json.loads(sys.argv[1])
folder = Path(folder)


def make(environment):
    launcher = LAUNCHER_REGISTRY.create(options.pop("alias"), **options)
    launcher.connect(cluster_environment=environment, num_processes=num_processes, num_nodes=1)
    launcher.check()
    return launcher


def work(environment, what, folder, number, times=1):
    rank = environment.global_rank()
    (folder / f"pid-{rank}-{os.getpid()}").touch()
    (folder / f"rank-{number}-{rank}").write_text(json.dumps(
        [environment.world_size(), rank, environment.local_rank(), environment.node_rank(), environment.main_port]))
    last = rank == environment.world_size() - 1
    # The last rank fails when all others are inside their `try`.
    while what in ("raise", "kill") and last and len(list(folder.glob("ready-*"))) < rank:
        time.sleep(0.01)
    if what == "raise" and last:
        raise ValueError(f"rank {rank} has had enough")
    if what == "kill" and last:
        os.kill(os.getpid(), signal.SIGKILL)
    if what in ("raise", "kill"):
        try:
            (folder / f"ready-{rank}").touch()
            time.sleep(60)
        finally:
            (folder / f"finally-{rank}").touch()
    return {"rank": rank, "number": number, "times": times}


def main():
    environment = LocalEnvironment()
    launcher = make(environment)
    before = {name for name in os.environ}
    results = []
    for number in range(2 if what == "twice" else 1):
        results.append(launcher.launch(work, environment, what, folder, number, times=3))
    launcher.close()
    launcher.close()
    if environment.global_rank() == 0:
        known = rank_variables(world_size=1, global_rank=0, local_rank=0, node_rank=0, num_local=1)
        left = sorted(name for name in {*os.environ} - before - {*known} if not name.startswith("CORE_"))
        (folder / "main").write_text(json.dumps({"results": results, "variables": left}))


if __name__ == "__main__":
    main()
"""  # noqa: E501


class LauncherConformance(Conformance[Launcher]):
    """All that a launcher must prove. Subclass it, and set `alias`. Every test starts a script of
    its own.

    Attributes:
        num_processes: that it makes.
    """

    kind = "launcher"
    num_processes: ClassVar[int] = 2

    def test_says_how_it_calls(self) -> None:
        """`calls_in_place` and `pickles` are yes or no."""
        launcher = self.make()
        assert isinstance(launcher.calls_in_place, bool)
        assert isinstance(launcher.pickles, bool)

    def test_runs_on_every_rank(self, folder: Path) -> None:
        """The function runs once a rank, where the environment knows its place; rank 0's result
        comes back.
        """
        self._start("once", folder).assert_ended_well()
        places = [
            json.loads((folder / f"rank-0-{rank}").read_text())
            for rank in range(self.num_processes)
        ]
        assert [place[:4] for place in places] == [
            [self.num_processes, rank, rank, 0] for rank in range(self.num_processes)
        ]
        assert len({place[4] for place in places}) == 1, "ranks don't agree on the port"
        assert self._main(folder)["results"] == [{"rank": 0, "number": 0, "times": 3}]

    def test_launches_again(self, folder: Path) -> None:
        """A second launch of the same size works, and so does a second `close`."""
        self._start("twice", folder).assert_ended_well()
        assert [result["number"] for result in self._main(folder)["results"]] == [0, 1]
        assert len(list(folder.glob("rank-1-*"))) == self.num_processes

    def test_leaves_no_process_and_no_variable(self, folder: Path) -> None:
        """No process is left when the script is over, and no variable but `CORE_...` and those of
        the rank.
        """
        self._start("once", folder).assert_ended_well()
        self._assert_nobody_lives(folder)
        assert self._main(folder)["variables"] == []

    def test_an_exception_comes_first(self, folder: Path) -> None:
        """A rank that raises ends all: its own traceback comes first, the others run their
        `finally` blocks.
        """
        ended = self._start("raise", folder)
        last = self.num_processes - 1
        assert ended.code not in (0, None)
        assert f"rank {last} has had enough" in ended.errors
        assert "in work" in ended.errors.partition(f"rank {last} has had enough")[0], (
            "its traceback isn't first"
        )
        for rank in range(last):
            assert (folder / f"finally-{rank}").exists(), (
                f"rank {rank} was not given the time to end"
            )
        self._assert_nobody_lives(folder)

    def test_a_killed_rank_is_named(self, folder: Path) -> None:
        """A rank that is killed ends all, with a code that isn't 0 and an error that names rank and
        signal.
        """
        if self.num_processes == 1:
            pytest.skip(f"{self.alias} runs in the process that is killed")
        ended = self._start("kill", folder)
        assert ended.code not in (0, None)
        assert "SIGKILL" in ended.errors
        assert f"ank {self.num_processes - 1}" in ended.errors
        self._assert_nobody_lives(folder)

    def _start(self, what: str, folder: Path) -> _Ended:
        arguments: list[Any] = [
            {"alias": self.alias, **self.options},
            self.num_processes,
            what,
            str(folder),
        ]
        done = run_forked(folder / "program.py", _PROGRAM, arguments, timeout_s=_TIMEOUT_S)
        return _Ended(done.returncode, done.stderr)

    def _main(self, folder: Path) -> dict[str, Any]:
        reported: dict[str, Any] = json.loads((folder / "main").read_text())
        return reported

    def _assert_nobody_lives(self, folder: Path) -> None:
        pids = {int(path.name.rpartition("-")[2]) for path in folder.glob("pid-*")}
        assert pids
        alive = [pid for pid in pids if _lives(pid)]
        assert not alive, f"processes are left: {alive}"


class _Ended:
    """A script that is over."""

    def __init__(self, code: int, errors: str) -> None:
        self.code, self.errors = code, errors

    def assert_ended_well(self) -> None:
        """Fail unless the exit code is 0."""
        assert self.code == 0, f"it ended with code {self.code}:\n{self.errors}"


def _lives(pid: int) -> bool:
    """True unless a process has ended; one that waits for its parent to ask has."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:  # it is gone now, or there is no /proc
        return not Path("/proc/self").exists()
