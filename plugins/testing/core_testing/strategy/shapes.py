"""Batches of other shapes than the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core import Capability, CoreError
from core_testing.cases import Case
from core_testing.marks import of_trainer
from core_testing.networks import GLOBAL_BATCH_SIZE, Bounded, make_batches_of
from core_testing.strategy.base import StrategySuite
from core_testing.training import Recorder, TrainingRecord

if TYPE_CHECKING:
    from core_testing.ranks import Rank


class ShapeTests(StrategySuite):
    """Nothing that a strategy has learnt of its first batch is taken for true of the next."""

    @of_trainer
    def test_other_shapes_are_trained_or_refused(self) -> None:
        """Batches of two lengths, a small last one, and one of a third length in validation; or an
        error says why.
        """
        case = self.adapted(Case("shapes", network=Bounded))
        # a program may take whole batches alone
        is_compiled = Capability.COMPILED_STEP in self.declared()
        size_of_last = (
            GLOBAL_BATCH_SIZE if is_compiled else max(GLOBAL_BATCH_SIZE // 2, self.shares)
        )
        expected = self.one_device.run(_train_or_refuse, case, size_of_last)[0]
        for rank, found in enumerate(self.run(_train_or_refuse, case, size_of_last)):
            if isinstance(found, str):
                assert "shape" in found, (
                    f"rank {rank} refuses, and does not name the shape: {found}"
                )
            elif rank == 0:
                self.assert_like_one_device(found, expected)


class _Validating(Recorder):
    """Notes the error of each validation among the losses."""

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Note it."""
        self.run.losses.append(float(trainer.callback_metrics["error"]))


def _train_or_refuse(rank: Rank, case: Case, size_of_last: int) -> TrainingRecord | str:
    recorder, size = _Validating(), rank.backend.data_parallel_size
    loaders = [
        make_batches_of(case, size, lengths, size_of_last) for lengths in ((1, 2, 1, 2), (3,))
    ]
    try:
        rank.trainer(callbacks=recorder, max_epochs=2).fit(case.network(case), *loaders)
    except CoreError as error:
        return str(error)
    return recorder.run
