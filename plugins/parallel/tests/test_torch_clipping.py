"""torch's own `clip_grad_norm_` clips by the norm over all ranks, wherever gradients lie."""

import pytest
import torch
from language import ALONE, MixtureNet, Net, Step, on, train
from torch.nn.utils import clip_grad, clip_grad_norm_
from torch.nn.utils import clip_grads_with_norm_ as clips
from torch.nn.utils import get_total_norm as norm_of_torch

from core_parallel import MeshParallelStrategy
from core_parallel.modules import torch_clipping
from core_testing.training import assert_equal_tensors


@pytest.mark.numbers
@pytest.mark.parametrize(
    ("mesh", "net", "has_all"),
    [
        ({"pipeline": 2}, Net, True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ({"tensor": 2}, Net, True),
                ({"pipeline": 2}, Net, False),
                ({"data": 2, "expert": 2}, MixtureNet, True),
                ({"pipeline": 2, "schedule": "1F1B", "shard": 2}, Net, True),
                ({"shard": 2, "tensor": 2}, Net, True),
            ]
        ),
    ],
    ids=str,
)
def test_it_clips_by_the_norm_over_all_ranks(mesh, net, has_all):
    class Clips(Step):
        """A step that clips by itself, what a rank has of the parameters or all of them."""

        def __init__(self, net, has_all):
            super().__init__(net)
            self.norms, self.has_all = [], has_all

        def configure_gradient_clipping(self, *_, **__):
            chosen = [one for one in self.parameters() if self.has_all or not one.is_meta]
            self.norms.append(float(clip_grad_norm_(chosen, 0.3)))

    def _train(rank, net, has_all=True):
        module = Clips(net, has_all)
        weights, _ = train(rank, lambda: module, max_steps=2)
        return weights, module.norms

    (weights, norms), *_ = ALONE.run(_train, net)
    found = on(**mesh).run(_train, net, has_all)
    assert_equal_tensors(found[0][0], weights, 1e-12)
    for _, of_rank in found:
        assert of_rank == pytest.approx(norms, rel=0, abs=1e-12)


def test_torch_has_its_own_functions_again_after_the_last_strategy():
    one, other = MeshParallelStrategy(), MeshParallelStrategy()
    torch_clipping.follow(one)
    torch_clipping.follow(other)
    torch_clipping.leave(one)
    assert torch_clipping.is_followed()
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert clip_grad_norm_(parameter, 1.0) == 5
    assert parameter.grad.norm() == pytest.approx(1)
    torch_clipping.leave(other)
    torch_clipping.leave(other)
    assert not torch_clipping.is_followed()
    assert vars(clip_grad)["_get_total_norm"] is norm_of_torch
    assert vars(clip_grad)["_clip_grads_with_norm_"] is clips
