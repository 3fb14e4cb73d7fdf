"""Compiled models compute what one device does on meshes of several axes, and are compiled in the first epochs only."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import combined
import mixed
import pytest
import torch
from axes import Seen, Step, loader, on_mesh, train
from mixtures import MixtureStep
from torch import nn

from core import Callback
from core_parallel.modules import compiled_parts
from core_testing.ranks import one_device
from core_testing.training import assert_equal_tensors

if TYPE_CHECKING:
    from core_testing.ranks import Rank

_WINDOW: dict[str, Any] = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3, "max_steps": 6}


class _Compiled(Callback):
    """Counts the graphs of each epoch."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_train_epoch_start(self, *_: Any) -> None:
        self.counts.append(0)

    def compile(self, graph: Any, inputs: Any) -> Any:
        """Compile nothing: the graph itself runs."""
        self.counts[-1] += 1
        return graph.forward


def _train(rank: Rank, make: Any, options: dict[str, Any]) -> Any:
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")  # torch's compiler looks at it
    torch._dynamo.reset()
    seen, compiled = Seen(), _Compiled()
    torch.manual_seed(5 + rank.number)
    compiler = {"backend": compiled.compile, **options}
    trainer = rank.trainer(max_epochs=10, callbacks=[seen, compiled], compile=compiler, **_WINDOW)
    trainer.fit(make(), loader(8 // rank.backend.data_parallel_size))
    return seen.weights, compiled.counts


_UNITS = {"region": "units"}
_BY_HAND: list[tuple[Any, ...]] = [
    ({"pipeline": 2, "expert": 2}, 4, mixed.make, {}),  # stages as beside shards, experts as in units
    ({"context": 2}, 2, Step, {}),  # the whole model, as under pipelines
    ({"context": 2, "context_attention": "gather"}, 2, Step, {}),
    ({"shard": 2, "context": 2}, 4, combined.make, {}),
    ({"expert": 2}, 2, MixtureStep, {}),
    ({"pipeline": 2, "context": 2, "schedule": "GPipe"}, 4, combined.make, {}),
]


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("mesh", "num_processes", "make", "options"),
    [
        ({"context": 2}, 2, Step, _UNITS),
        ({"expert": 2}, 2, MixtureStep, _UNITS),
        ({"pipeline": 2, "tensor": 2}, 4, combined.make, {}),
        ({"pipeline": 2, "shard": 2, "schedule": "1F1B"}, 4, combined.make, {}),
        *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in _BY_HAND),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_compiled_model_equals_one_device(mesh: Any, num_processes: int, make: Any, options: Any) -> None:
    backend = on_mesh(num_processes, combined.data_parallel_size(num_processes, mesh), **mesh)
    (weights, counts), *_ = backend.run(_train, make, options)
    expected, _ = one_device("cpu").run(partial(train, make=make, **_WINDOW))[0]
    assert_equal_tensors(weights, expected, 1e-12)
    # Later epochs have the shapes of the first. What `tensor` compares is run as it is, and compiled the next time.
    first = 1 + ("tensor" in mesh)
    assert counts[0] > 0
    assert not any(counts[first:]), counts
    assert len(counts) > first


def test_a_copy_of_a_compiled_part_has_its_own_weights() -> None:
    part = nn.Linear(2, 2)
    undo = compiled_parts.compile_parts([part], lambda call: call)
    copied = copy.deepcopy(part)
    with torch.no_grad():
        copied.weight.zero_()
        copied.bias.zero_()
    assert not copied(torch.ones(1, 2)).any()
    assert part(torch.ones(1, 2)).any()
    undo()
    assert "forward" not in vars(part)
