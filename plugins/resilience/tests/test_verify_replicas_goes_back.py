"""A run one of whose ranks was damaged goes back to where all were alike, and ends as an
undisturbed one.
"""

import pytest
import torch
from disturbed_runs import Keep, Net, fit
from torch import nn
from torch.utils.data import DataLoader

from core import ConfigurationError
from core.callbacks import MemoryCheckpoint, VerifyReplicas
from core_parallel import MeshParallelStrategy
from core_resilience import ReplicasDifferError
from core_testing import Backend
from support.tiny import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:VerifyReplicas")
BACKENDS = {
    "ddp": Backend(lambda: "ddp", num_processes=2, in_process=True),
    "parallel": Backend(lambda: MeshParallelStrategy(data=2, shard=2), num_processes=4),
}


class Damage(Keep):
    """Changes a weight of the last rank after a step, so many times."""

    def __init__(self, step, times):
        super().__init__()
        self.step, self.times = step, times

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == self.step and self.times:
            self.times -= 1
            if trainer.global_rank == trainer.world_size - 1:
                weight = module.net[0].weight.detach()
                getattr(weight, "to_local", lambda: weight)()[0, 0] += 1


def damaged(rank, folder, step, times, every=1):
    verify, keep = VerifyReplicas(3, on_difference="go_back", max_returns=2), Damage(step, times)
    data = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(data, batch_size=4 // rank.backend.num_processes, shuffle=True)
    fit(
        rank,
        loader,
        verify,
        MemoryCheckpoint(every, folder),
        keep=keep,
        norm=nn.LayerNorm,
        max_epochs=2,
    )
    return keep, verify


@pytest.mark.parametrize(
    ("strategy", "every", "begins"),
    [
        ("ddp", 1, 6),  # the last ones are those after steps 7 and 8
        ("ddp", 4, 4),  # that after step 8 is too new
        pytest.param("parallel", 1, 6, marks=pytest.mark.slow),
    ],
)
def test_it_goes_back_to_where_all_were_alike(tmp_path, strategy, every, begins):
    def damaged_and_not(rank, folder, every):
        (damage, verify), (other, nothing) = (
            damaged(rank, folder, 7, 1, every),
            damaged(rank, folder, 7, 0, every),
        )
        assert nothing.differences == []
        assert all(map(torch.equal, damage.tensors, other.tensors))
        return damage.starts, [each.step for each in verify.differences]

    backend = BACKENDS[strategy]
    assert (
        backend.run(damaged_and_not, tmp_path, every)
        == [([0, begins], [9])] * backend.num_processes
    )


@pytest.mark.parametrize(
    ("step", "match"),
    [
        (7, r"^After step 9 ranks 0, 1 differ .* The run went back 2 times already\. Memory"),
        (2, r"^After step 3 ranks 0, 1 differ .* The run has no state in which ranks were alike"),
    ],
)
def test_where_it_cant_go_back_it_ends(tmp_path, step, match):
    def damaged_in_vain(rank, folder, step, match):
        with pytest.raises(ReplicasDifferError, match=match):
            damaged(rank, folder, step, -1)

    BACKENDS["ddp"].run(damaged_in_vain, tmp_path, step, match)


def test_without_kept_states_there_is_no_way_back(tmp_path):
    with pytest.raises(
        ConfigurationError,
        match=r"^VerifyReplicas\(on_difference='go_back'\) goes back to states that",
    ):
        make_trainer(tmp_path, VerifyReplicas(3, on_difference="go_back")).fit(
            Net(), DataLoader(torch.ones(1, 4))
        )
