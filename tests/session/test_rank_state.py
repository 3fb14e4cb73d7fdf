"""State that each rank of a strategy keeps for itself, in checkpoints."""

import warnings

import pytest
import torch

from core import Capability
from core.checkpoint import DistributedCheckpointIO, TorchCheckpointIO, load_checkpoint
from core.strategies import ParallelStrategy, SingleDeviceStrategy
from core_testing import Backend
from support.small_nets import At, Net, batches, quiet_trainer


@pytest.mark.parametrize("io", [DistributedCheckpointIO, TorchCheckpointIO])
def test_each_rank_gets_its_own_back(tmp_path, io):
    def run(function, path, num_ranks, make):
        return Backend(make, num_processes=num_ranks, in_process=True).run(function, path)

    def set_up(rank):
        fabric, module = rank.fabric(), torch.nn.Linear(1, 1)
        model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        return fabric, {"model": model, "nested": {"optimizer": [optimizer]}}

    def load(rank, path):
        fabric, state = set_up(rank)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert fabric.load(path, state) == {}
        return getattr(fabric.strategy, "rest", None), [str(warning.message) for warning in caught]

    def save(rank, path):
        fabric, state = set_up(rank)
        fabric.save(path, state)
        fabric.save(f"{path}-weights", {"model": state["model"]})

    class Keeps(ParallelStrategy):
        """Has a tensor and a number on each rank; the ranks' tensors differ in shape."""

        rest = None

        @property
        def capabilities(self):
            return super().capabilities | Capability.REPLICATED_PARAMETERS

        def rank_state_dict(self):
            rank = self.global_rank
            return {
                "rest": {"weight": torch.full((2 + rank, 3), float(rank))},
                "scalar": torch.tensor(rank),
                "count": rank,
            }

        def load_rank_state_dict(self, state):
            self.rest = state

    def make():
        return Keeps(checkpoint_io=io())

    path = tmp_path / "saved"
    run(save, path, 2, make)
    for rank, (rest, said) in enumerate(run(load, path, 2, make)):
        assert torch.equal(rest["rest"]["weight"], torch.full((2 + rank, 3), float(rank)))
        assert rest["scalar"].item() == rest["count"] == rank
        assert said == []
    assert run(load, path, 1, make) == [
        (
            None,
            [
                "2 ranks have saved what each keeps for itself, such as the rest of a compression, "
                "and here are 1: it begins anew. In 2 processes the run goes on exactly."
            ],
        )
    ]
    assert run(load, path, 1, SingleDeviceStrategy) == [(None, [])]
    assert "strategy.rank_state" in load_checkpoint(path)
    assert "strategy.rank_state" not in load_checkpoint(f"{path}-weights")


def test_the_trainer_restores_it_where_it_trains(tmp_path):
    class Counts(SingleDeviceStrategy):
        num_steps = 0

        def optimizer_step(self, optimizer, closure=None):
            self.num_steps += 1
            return super().optimizer_step(optimizer, closure)

        def rank_state_dict(self):
            return {"num_steps": self.num_steps}

        def load_rank_state_dict(self, state):
            self.num_steps = state["num_steps"]

    path = tmp_path / "two.ckpt"
    saving = At("on_train_end", lambda module: module.trainer.save_checkpoint(path))
    quiet_trainer(strategy=Counts(), callbacks=saving, max_steps=2).fit(Net(), batches(2))
    resumed = quiet_trainer(strategy=Counts(), max_steps=3)
    resumed.fit(Net(), batches(2), ckpt_path=path)
    assert resumed.strategy.num_steps == 3
