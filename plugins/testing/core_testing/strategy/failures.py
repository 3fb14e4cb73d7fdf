"""Ends by a failure: a rank that raises, one that dies, one that doesn't come."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from core import Capability, CoreError, WorkerError
from core_testing.cases import Case
from core_testing.marks import needs, of_processes, of_several, of_trainer
from core_testing.networks import Perceptron, make_loader
from core_testing.strategy.base import StrategySuite

if TYPE_CHECKING:
    from pathlib import Path

    from core_testing.ranks import Rank

_CASE = Case("failure")
_PATIENCE = timedelta(seconds=2)


class FailureTests(StrategySuite):
    """The whole run ends, and says why."""

    @of_processes("how processes end")
    @of_trainer
    def test_a_failing_rank_ends_all(self, folder: Path) -> None:
        """An exception on the last rank ends every rank, and is what the caller sees first."""
        last = self.num_processes - 1
        with pytest.raises(WorkerError) as caught:
            self.run_in_new_processes(_fail_on, self.adapted(_CASE), last, folder)
        assert caught.value.rank == last
        assert f"rank {last} has had enough" in str(caught.value)
        assert "training_step" in str(caught.value.worker_traceback)
        _assert_nobody_lives(folder, self.num_processes)

    @of_processes("how processes end")
    @of_trainer
    def test_a_killed_rank_ends_all(self, folder: Path) -> None:
        """A rank that is killed ends the others too, and the signal is named."""
        last = self.num_processes - 1
        with pytest.raises(WorkerError, match=rf"[Rr]ank {last} .*SIGKILL"):
            self.run_in_new_processes(_die_on, self.adapted(_CASE), last, folder)
        _assert_nobody_lives(folder, self.num_processes)

    @of_processes("a time limit")
    @needs(Capability.COLLECTIVES)
    @of_several
    def test_a_hanging_rank_is_named(self) -> None:
        """A barrier to which a rank doesn't come ends with an error that names the rank."""
        if not self.alone(lambda: self._takes(timeout=_PATIENCE)):
            pytest.skip(f"{self.alias} has no option timeout")
        impatient = replace(
            self.backend, strategy=lambda: self.make(timeout=_PATIENCE), kept_for=None
        )
        last = self.num_processes - 1
        with pytest.raises(WorkerError) as caught:
            impatient.run(_hang_on, last)
        message = f"{caught.value}{caught.value.worker_traceback}"
        assert re.search(rf"[Rr]anks?:?\W*{last}\b", message), message

    def test_bad_options_are_refused(self) -> None:
        """An option that doesn't exist is an error when the strategy is made, and not ignored."""
        assert not self.alone(lambda: self._takes(no_such_option=1))

    def _takes(self, **options: Any) -> bool:
        try:
            self.make(**options)
        except (TypeError, CoreError):
            return False
        return True


class _Tired(Perceptron):
    def __init__(self, case: Case, tired: bool) -> None:
        super().__init__(case)
        self.tired = tired

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.tired and batch_idx == 2:
            raise ValueError(f"rank {self.global_rank} has had enough")
        return super().training_step(batch, batch_idx)


class _Dying(_Tired):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.tired and batch_idx == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return Perceptron.training_step(self, batch, batch_idx)


def _fail_on(rank: Rank, case: Case, failing: int, folder: Path) -> None:
    (folder / f"pid-{os.getpid()}").touch()
    rank.trainer(max_epochs=1).fit(
        _Tired(case, rank.number == failing), make_loader(case, rank.backend.data_parallel_size)
    )


def _die_on(rank: Rank, case: Case, dying: int, folder: Path) -> None:
    (folder / f"pid-{os.getpid()}").touch()
    rank.trainer(max_epochs=1).fit(
        _Dying(case, rank.number == dying), make_loader(case, rank.backend.data_parallel_size)
    )


def _assert_nobody_lives(folder: Path, expected: int) -> None:
    pids = [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]
    assert len(pids) == expected
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _hang_on(rank: Rank, absent: int) -> None:
    fabric = rank.fabric()
    fabric.barrier()
    if rank.number != absent:
        fabric.barrier("the last rank never comes")
    else:
        signal.pause()
