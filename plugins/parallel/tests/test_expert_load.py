"""The load of experts is counted over all ranks, and logged alike on any strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from axes import loader, on_mesh
from mixtures import MixtureStep

from core_parallel import ExpertLoad
from core_testing.ranks import one_device

if TYPE_CHECKING:
    from core_testing.ranks import Rank


class _Counted(MixtureStep):
    """Counts the choices of the first block itself."""

    def on_train_start(self) -> None:
        self.counts = torch.zeros(4)
        self.net.blocks[0].gate.register_forward_hook(self._count)

    def _count(self, module: Any, args: Any, scores: Any) -> None:
        self.counts += torch.bincount(scores.topk(2).indices.flatten(), minlength=4)


def _logged(rank: Rank) -> Any:
    module, hooks = _Counted(), []
    trainer = rank.trainer(max_steps=2, callbacks=ExpertLoad(), log_every_n_steps=2)
    trainer.fit(module, loader(8 // rank.backend.data_parallel_size))
    hooks = [len(part._forward_pre_hooks) for part in module.modules()]
    return {name: float(value) for name, value in trainer.callback_metrics.items()}, module.counts, sum(hooks)


@pytest.mark.numbers
def test_the_load_is_that_of_one_device() -> None:
    ((expected, counts, hooks),) = one_device("cpu", is_kept=False).run(_logged)
    shares = counts / counts.sum()
    assert hooks == 0
    for number, share in enumerate(shares.tolist()):
        assert expected[f"expert_load/net.blocks.0.experts/{number}"] == pytest.approx(share)
    assert expected["expert_load/net.blocks.0.experts/max_violation"] == pytest.approx(float(shares.max()) * 4 - 1)
    for found, _, _ in on_mesh(2, 2, expert=2).run(_logged):
        assert {name: found[name] for name in expected if name != "loss"} == pytest.approx(
            {name: value for name, value in expected.items() if name != "loss"}
        )
