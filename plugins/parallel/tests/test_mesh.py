"""One mesh with named axes: its sizes, the shares of the data, and what isn't an option of it."""

import inspect

import pytest
import torch.distributed as dist
from language import on, train

import core_parallel
from core import ConfigurationError, Trainer
from core.strategies import STRATEGY_REGISTRY, known_options
from core.watch import end as end_watch
from core_fsdp import FSDPStrategy
from core_parallel import MeshParallelStrategy
from core_parallel.mesh import sizes
from core_testing.training import assert_equal_tensors


def test_the_earlier_name_is_the_same_class():
    assert core_parallel.ParallelStrategy is MeshParallelStrategy
    assert STRATEGY_REGISTRY.get("parallel") is MeshParallelStrategy
    assert known_options(MeshParallelStrategy) >= {
        *sizes.AXES,
        "expert",
        "context_dim",
        "start_method",
    }
    assert not known_options(MeshParallelStrategy) & {"axes", "options"}


def test_data_is_what_the_other_axes_leave_over():
    def derived(world_size, **given):
        ones = dict.fromkeys((*sizes.AXES, "expert"), 1)
        return sizes.derive(ones | {"data": None} | given, world_size)

    assert derived(16, shard=2, tensor=2).shape == (1, 4, 2, 1, 2)
    assert derived(8, pipeline=None, data=2).shape == (4, 2, 1, 1, 1)
    assert derived(8, shard=None, tensor=None).shape == (1, 1, 8, 1, 1)
    assert derived(4, expert=None).expert == 4


@pytest.mark.parametrize(
    ("options", "devices", "expected"),
    [
        ({"pipeline": 3}, 4, r"pipeline=3, data=1, .* are 3 processes, and there are 4"),
        (
            {"tensor": 3, "shard": 2},
            4,
            "shard=2, context=1, tensor=3 are 6 processes, and there are 4",
        ),
        (
            {"expert": 3},
            4,
            r"expert=3: .* which are 4 \(4 \* 1 \* 1\)\. Choose a size that divides that",
        ),
        ({"tensor": 0}, 4, "tensor=0: expected a positive number, or 'auto'"),
        ({"cpu_offload": True}, 4, "is about parameters in shards, and shard=1 has none"),
        ({"shard": 2, "device_mesh": (2, 2)}, 4, "lays out its own mesh"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused_before_work(options, devices, expected):
    with pytest.raises(ConfigurationError, match=expected):
        Trainer(strategy=MeshParallelStrategy(**options), accelerator="cpu", devices=devices)


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize("axis", ["tensor", "shard"])
def test_a_fit_after_the_group_was_destroyed_uses_groups_of_the_new_one(axis):
    def fit_in_two_groups(rank):
        """The weights of a fit, and of one in a group that is made anew, whose subgroups have other
        names.
        """
        first = train(rank, max_steps=2)[0]
        end_watch()
        dist.destroy_process_group()
        fabric = rank.fabric("ddp")  # makes no mesh
        fabric.barrier()
        for _ in range(2):
            dist.new_group([0, 1])
        second = train(rank, max_steps=2)[0]
        fabric.teardown()
        return first, second

    first, second = on(data=2, **{axis: 2}).run(fit_in_two_groups)[0]
    assert_equal_tensors(second, first, 0.0)


def test_an_option_given_as_its_default_is_not_one_of_shards():
    given = {name: it.default for name, it in inspect.signature(FSDPStrategy).parameters.items()}
    defaults = {
        name: value for name, value in given.items() if value is not inspect.Parameter.empty
    }
    assert defaults["auto_wrap_policy"] == "units"
    assert MeshParallelStrategy(pipeline=2, **defaults).auto_wrap_policy == "units"
