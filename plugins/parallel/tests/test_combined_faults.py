"""The comparison with one device sees what may go wrong where axes are combined: each fault is put in, and is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import combined
import pytest
from faults import compares_no_ranks, first_gradient_twice, first_loss_twice, halved_input_gradient
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel

from core_parallel.communication import averages
from core_parallel.mesh.placements import own_part
from core_parallel.pipeline import chain
from core_parallel.pipeline.scheduled_step import ScheduledStep
from core_parallel.stages.shards import Shards
from core_testing.ranks import one_device

if TYPE_CHECKING:
    from torch import Tensor

    from core_testing.ranks import Rank

_OPTIONS = {"max_steps": 2, "gradient_clip_val": 0.05}
_average, _clip, _norm, _reduce = averages.average, averages.clip_by_norm, averages.get_total_norm, Shards.reduce
Patch = tuple[Any, str, Any]


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _by_own_norm(parameters: Any, counted: Any, clipping: Any, line: Any) -> Tensor:
    return _clip(parameters, counted, clipping, None)


def _by_norm_of_all(parameters: Any, counted: Any, clipping: Any, line: Any) -> Tensor:
    return _clip(parameters, parameters, clipping, line)


def _norm_of_parts(tensors: Any, *options: Any) -> Tensor:
    return _norm([own_part(one) for one in tensors], *options)


def _counted_by_all(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm * 2**0.5


def _average_of_whole(parameters: Any, group: Any) -> None:
    _average([one for one in parameters if not isinstance(one, DTensor)], group)


def _reduce_unweighted(self: Shards, scale: Any = None) -> None:
    _reduce(self)


_UNAVERAGED: Patch = (averages, "average", _nothing)

_FAULTS: list[tuple[dict[str, Any], dict[str, Patch]]] = [
    (
        {"pipeline": 2, "tensor": 2},
        {
            "a rank clips by the norm of its part of layers": (averages, "get_total_norm", _norm_of_parts),
            "a stage clips by its own norm": (averages, "clip_by_norm", _by_own_norm),
            "what every stage has counts once a stage": (averages, "clip_by_norm", _by_norm_of_all),
            "what a tensor group has whole counts once a rank": (averages, "_whole", _counted_by_all),
            "the gradient of a layer's input isn't summed": (
                *(ColwiseParallel, "_prepare_input_fn"),
                staticmethod(halved_input_gradient),
            ),
            "a microbatch's gradient counts twice": (chain, "_cut", first_gradient_twice),
        },
    ),
    (
        {"pipeline": 2, "shard": 2, "schedule": "1F1B"},
        {
            "what is whole isn't averaged": _UNAVERAGED,
            "gradients of shards aren't reduced": (Shards, "reduce", _nothing),
            "a share's weight doesn't count": (Shards, "reduce", _reduce_unweighted),
            "a microbatch's gradient counts twice": (ScheduledStep, "_loss", first_loss_twice),
        },
    ),
    ({"pipeline": 2, "context": 2}, {"gradients of a part of the sequence aren't averaged": _UNAVERAGED}),
    (
        {"shard": 2, "context": 2},
        {
            "shards aren't averaged over the context group": (averages, "average", _average_of_whole),
        },
    ),
]


def _options(mesh: dict[str, Any]) -> dict[str, Any]:
    """Of the Trainer. Under context a second step compares ranks again, and would refuse weights of a fault."""
    return {**_OPTIONS, "max_steps": 1} if "context" in mesh else _OPTIONS


def _fit_with_all(rank: Rank, mesh: dict[str, Any], faults: dict[str, Patch]) -> dict[str, Any]:
    """The weights without a fault, and with each, in one group of ranks."""
    found = {"none": combined.train(rank, mesh, _options(mesh))[0]}
    for name, patch in faults.items():
        with compares_no_ranks(), mock.patch.object(*patch):
            found[name] = combined.train(rank, mesh, _options(mesh))[0]
    return found


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("mesh", "faults"),
    [
        # Most faults of the first are one axis's, which test_faults.py puts in: it is by hand.
        pytest.param(*each, marks=() if number else pytest.mark.exhaustive, id=str(each[0]))
        for number, each in enumerate(_FAULTS)
    ],
)
def test_a_fault_of_combined_axes_is_seen(mesh: dict[str, Any], faults: dict[str, Patch]) -> None:
    expected = one_device("cpu").run(combined.train, None, _options(mesh))[0][0]
    for fault, weights in combined.ranks(4).run(_fit_with_all, mesh, faults)[0].items():
        differs = max(float((weights[key] - value).abs().max()) for key, value in expected.items())
        assert differs < 1e-12 if fault == "none" else differs > 1e-6, (fault, differs)
