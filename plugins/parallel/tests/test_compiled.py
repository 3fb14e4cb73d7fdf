"""Compiled models compute what one device does on meshes of several axes, and are compiled in the
first epochs only.
"""

import copy
import warnings
from functools import partial

import pytest
import torch
from language import ALONE, MixtureNet, Step, on, train
from torch import nn

from core import Callback
from core_parallel.modules import compiled_parts
from core_testing.training import assert_equal_tensors

_WINDOW = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3, "max_steps": 6}


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("mesh", "make", "options"),
    [
        ({"context": 2}, Step, {"region": "units"}),
        ({"data": 2, "expert": 2}, partial(Step, MixtureNet), {"region": "units"}),
        ({"pipeline": 2}, Step, {"region": "units"}),
        ({"pipeline": 2, "tensor": 2}, Step, {}),
        ({"pipeline": 2, "shard": 2, "schedule": "1F1B"}, Step, {}),
    ],
    ids=str,
)
def test_a_compiled_model_equals_one_device(mesh, make, options):
    class _Compiled(Callback):
        """Counts the graphs of each epoch."""

        def __init__(self):
            self.counts = []

        def on_train_epoch_start(self, *_):
            self.counts.append(0)

        def compile(self, graph, inputs):
            """Compile nothing: the graph itself runs."""
            self.counts[-1] += 1
            return graph.forward

    def _train(rank, make, options):
        # torch's compiler looks at it
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")
        torch._dynamo.reset()
        compiled = _Compiled()
        compiler = {"backend": compiled.compile, **options}
        weights, _ = train(rank, make, callbacks=[compiled], compile=compiler, **_WINDOW)
        return weights, compiled.counts

    weights, counts = on(**mesh).run(_train, make, options)[0]
    expected, _ = ALONE.run(partial(train, make=make, **_WINDOW))[0]
    assert_equal_tensors(weights, expected, 1e-12)
    # Later epochs have the shapes of the first. What is looked at runs as it is, and is compiled the
    # next time.
    first = 1 + bool({"pipeline", "tensor", "context"} & {*mesh})
    assert counts[0] > 0
    assert not any(counts[first:]), counts
    assert len(counts) > first


def test_a_copy_of_a_compiled_part_has_its_own_weights():
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
