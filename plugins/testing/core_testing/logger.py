"""The conformance suite of loggers."""

from __future__ import annotations

import importlib.util
import math
import pickle
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from core import Logger
from core.strategies import ParallelStrategy
from core_testing.cases import Case
from core_testing.conformance import Conformance
from core_testing.marks import launches, of_trainer
from core_testing.networks import Perceptron, make_loader
from core_testing.ranks import Backend

if TYPE_CHECKING:
    from core_testing.ranks import Rank


class LoggerConformance(Conformance[Logger]):
    """All that a logger must prove. Subclass it, set `alias`, and override `read` if what was
    logged can be read.

    Attributes:
        save_option: the option that says where it writes; None if it writes to no folder.
        requires: a library that it can't do without; its tests are skipped where it isn't
            installed.
        timeout_s: after which ranks that hang fail their test.
    """

    kind = "logger"
    save_option: ClassVar[str | None] = "save_dir"
    requires: ClassVar[str | None] = None
    timeout_s: ClassVar[float] = 60

    def read(self, logger: Logger, folder: Path) -> list[tuple[int, str, float]] | None:
        """The logged values, as (step, name, value), in any order; None if they can't be read.

        Args:
            logger: that has logged, and was finalized.
            folder: where it writes.
        """
        return None

    @pytest.fixture(autouse=True)
    def _need_library(self, _gate: None) -> None:
        if self.requires is not None and importlib.util.find_spec(self.requires) is None:
            pytest.skip(f"{self.alias} needs {self.requires}, which is not installed")

    def make_in(self, folder: Path) -> Logger:
        """One that writes below a folder."""
        return self.make(**({self.save_option: str(folder)} if self.save_option else {}))

    def test_making_it_writes_nothing(self, folder: Path) -> None:
        """A logger opens its files and connections when it is first used."""
        logger = self.make_in(folder)
        assert not list(folder.iterdir())
        assert isinstance(logger.name, str)

    def test_logs_metrics(self, folder: Path) -> None:
        """Steps, names and values arrive; a name may come later than others, and a step twice."""
        logger = self.make_in(folder)
        logger.log_metrics({"loss": 0.5}, 0)
        logger.log_metrics({"loss": 0.25, "accuracy": 1.0}, 1)
        logger.log_metrics({"validation": 3.0}, 1)
        logger.finalize("success")
        expected = {
            (0, "loss", 0.5),
            (1, "loss", 0.25),
            (1, "accuracy", 1.0),
            (1, "validation", 3.0),
        }
        self._assert_read(logger, folder, expected)

    def test_saves_what_it_keeps(self, folder: Path) -> None:
        """After `save`, nothing is kept back."""
        logger = self.make_in(folder)
        logger.log_metrics({"loss": 0.5}, 0)
        logger.save()
        self._assert_read(logger, folder, {(0, "loss", 0.5)})
        logger.finalize("success")

    def test_logs_what_is_not_a_number(self, folder: Path) -> None:
        """NaN and infinity, which a diverging run has, are no error."""
        logger = self.make_in(folder)
        logger.log_metrics({"loss": math.nan, "norm": math.inf}, 0)
        logger.finalize("success")

    def test_logs_hyperparameters(self, folder: Path) -> None:
        """Nested options, of any type, may be recorded, before and after metrics."""
        logger = self.make_in(folder)
        logger.log_hyperparams(
            {
                "lr": 0.1,
                "model": {"width": 8, "activation": "tanh"},
                "path": Path("x"),
                "none": None,
            }
        )
        logger.log_metrics({"loss": 1.0}, 0)
        logger.finalize("success")

    @pytest.mark.parametrize("status", ["success", "failed", "interrupted"])
    def test_finalizes(self, folder: Path, status: str) -> None:
        """With every status, twice, and when nothing was logged."""
        logger = self.make_in(folder)
        logger.finalize(status)
        logger.log_metrics({"loss": 1.0}, 0)
        logger.finalize(status)
        logger.finalize(status)

    def test_goes_on_after_a_stage(self, folder: Path) -> None:
        """Values that are logged after `finalize` belong to the same run."""
        logger = self.make_in(folder)
        logger.log_metrics({"loss": 1.0}, 0)
        logger.finalize("success")
        version = logger.version
        logger.log_metrics({"loss": 2.0}, 1)
        logger.finalize("success")
        assert logger.version == version
        self._assert_read(logger, folder, {(0, "loss", 1.0), (1, "loss", 2.0)})

    def test_crosses_processes(self, folder: Path) -> None:
        """It pickles before it is used, and another one takes over its run by `state_dict`."""
        logger = self.make_in(folder)
        version, state = self.alone(partial(_log_in_copy, pickle.dumps(logger)))
        assert pickle.loads(pickle.dumps(state)) == state
        logger.load_state_dict(state)
        assert logger.version == version
        logger.log_metrics({"loss": 2.0}, 1)
        logger.finalize("success")
        self._assert_read(logger, folder, {(0, "loss", 1.0), (1, "loss", 2.0)})

    def test_keeps_a_folder_for_others(self, folder: Path) -> None:
        """Checkpoints and the like may be put into `log_dir`, if there is one."""
        logger = self.make_in(folder)
        logger.log_metrics({"loss": 1.0}, 0)
        logger.save()
        if logger.log_dir is not None:
            others = Path(logger.log_dir, "checkpoints")
            others.mkdir(parents=True)
            (others / "file").write_text("theirs")
        logger.finalize("success")

    @launches
    @of_trainer
    def test_rank_zero_logs_for_all(self, folder: Path) -> None:
        """In a Trainer on two ranks, each value arrives once."""
        self.make_in(folder)
        backend = Backend(ParallelStrategy, "cpu", 2, 2, timeout_s=self.timeout_s)
        backend.run(_train_and_log, self, folder)
        logger = self.make_in(folder)
        found = self.read(logger, folder)
        if found is not None:
            steps = sorted(step for step, name, _ in found if name == "loss")
            assert steps == sorted(set(steps)), "steps were logged twice"
            assert steps, "nothing was logged"

    def _assert_read(
        self, logger: Logger, folder: Path, expected: set[tuple[int, str, float]]
    ) -> None:
        found = self.read(logger, folder)
        if found is not None:
            assert expected <= set(found), f"missing: {sorted(expected - set(found))}"


def _log_in_copy(pickled: bytes) -> tuple[str | int | None, dict[str, Any]]:
    copy: Logger = pickle.loads(pickled)
    copy.log_metrics({"loss": 1.0}, 0)
    copy.finalize("success")
    return copy.version, copy.state_dict()


class _Logging(Perceptron):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss.detach())
        return loss


def _train_and_log(rank: Rank, suite: LoggerConformance, folder: Path) -> None:
    case = Case("logger")
    trainer = rank.trainer(max_epochs=1, logger=suite.make_in(folder), log_every_n_steps=1)
    trainer.fit(_Logging(case), make_loader(case, rank.backend.data_parallel_size))
