"""torch's own `clip_grad_norm_` clips by the norm over all ranks, wherever gradients lie."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import combined
import mixed
import pytest
import torch
from axes import Step
from torch.nn.utils import clip_grad, clip_grad_norm_
from torch.nn.utils import clip_grads_with_norm_ as clips
from torch.nn.utils import get_total_norm as norm_of_torch

from core_parallel import MeshParallelStrategy
from core_parallel.modules import torch_clipping
from core_testing.ranks import one_device
from core_testing.training import assert_equal_tensors

if TYPE_CHECKING:
    from core_testing.ranks import Rank


class Clips(Step):
    """A step that clips by itself, what a rank has of the parameters or all of them."""

    def __init__(self, net: Any, *, has_all: bool) -> None:
        super().__init__(net)
        self.norms: list[float] = []
        self._has_all = has_all

    def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
        chosen = [one for one in self.parameters() if self._has_all or not one.is_meta]
        self.norms.append(float(clip_grad_norm_(chosen, 0.3)))


def _train(rank: Rank, mesh: dict[str, Any] | None, net: Any, has_all: bool) -> Any:
    module = Clips(net, has_all=has_all)
    weights, _ = combined.train(rank, mesh, {"max_steps": 2}, make=lambda: module)
    return weights, module.norms


_SLOW = pytest.mark.slow


@pytest.mark.numbers
@pytest.mark.parametrize(
    ("mesh", "num_processes", "net", "has_all"),
    [
        ({"pipeline": 2}, 2, combined.Net, True),
        pytest.param({"tensor": 2}, 2, combined.Net, True, marks=_SLOW),
        pytest.param({"pipeline": 2}, 2, combined.Net, False, marks=_SLOW),
        pytest.param({"expert": 2}, 2, mixed.MixedNet, True, marks=_SLOW),
        pytest.param({"pipeline": 2, "schedule": "1F1B", "shard": 2}, 4, combined.Net, True, marks=_SLOW),
        pytest.param({"shard": 2, "tensor": 2}, 4, combined.Net, True, marks=_SLOW),
    ],
    ids=str,
)
def test_it_clips_by_the_norm_over_all_ranks(mesh: dict[str, Any], num_processes: int, net: Any, has_all: bool) -> None:
    function = partial(_train, net=net, has_all=has_all)
    found = combined.ranks(num_processes).run(function, mesh)
    weights, norms = one_device("cpu").run(function, None)[0]
    assert_equal_tensors(found[0][0], weights, 1e-12)
    for _, of_rank in found:
        assert of_rank == pytest.approx(norms, rel=0, abs=1e-12)


def test_torch_has_its_own_functions_again_after_the_last_strategy() -> None:
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
