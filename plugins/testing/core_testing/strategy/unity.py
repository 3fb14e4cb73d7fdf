"""Ranks have one model whenever it is used."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from core import Capability
from core_testing.cases import Case
from core_testing.marks import needs, of_several, of_trainer
from core_testing.networks import Validated, make_data, make_loader
from core_testing.strategy.base import StrategySuite
from core_testing.trainer_names import Callback

if TYPE_CHECKING:
    from torch import Tensor

    from core_testing.ranks import Rank


class UnityTests(StrategySuite):
    """A strategy that averages now and then has done so when a model is validated, saved, or
    done.
    """

    @needs(Capability.COLLECTIVES)
    @of_several
    @of_trainer
    def test_ranks_meet_before_the_model_is_used(self, tmp_path: Path) -> None:
        """After a save, in validation and in `on_train_end`, all ranks compute the same."""
        first, *others = self.run(
            _outputs_on_the_way, self.adapted(Case("meeting")), tmp_path / "checkpoint"
        )
        assert sorted(first) == ["after a checkpoint", "in validation", "when training ends"]
        for rank, outputs in enumerate(others, start=1):
            for moment, output in outputs.items():
                message = (
                    f"rank {rank} and rank 0 have different models {moment}: "
                    "synchronize_model() has to make one"
                )
                torch.testing.assert_close(output, first[moment], msg=message)


class _Looks(Callback):
    """Notes what the module makes of the same inputs, one optimizer step after the ranks have
    met.
    """

    def __init__(self, path: Path, inputs: Tensor) -> None:
        self.path, self.inputs = path, inputs
        self.outputs: dict[str, Tensor] = {}

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save after the first step."""
        if batch_idx == 0:
            trainer.save_checkpoint(self.path)
            self._look(trainer, module, "after a checkpoint")

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Look after the second step."""
        self._look(trainer, module, "in validation")

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Look after the third step."""
        self._look(trainer, module, "when training ends")

    @torch.no_grad()
    def _look(self, trainer: Any, module: Any, moment: str) -> None:
        strategy = trainer.strategy
        inputs = strategy.precision_plugin.convert_input(self.inputs.to(strategy.root_device))
        with strategy.forward_context() or nullcontext():
            self.outputs[moment] = strategy.step_callable("forward", module)(inputs).cpu()


def _outputs_on_the_way(rank: Rank, case: Case, path: Path) -> dict[str, Tensor]:
    inputs, _ = make_data(case)[:2]
    looks, shares = _Looks(path, inputs), rank.backend.data_parallel_size
    trainer = rank.trainer(callbacks=looks, max_steps=3, val_check_interval=2)
    trainer.fit(Validated(case), make_loader(case, shares), make_loader(case, shares))
    return looks.outputs
