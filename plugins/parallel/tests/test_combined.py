"""What axes say together: models that they can't cut are refused, and an overflow of one rank is
one of all.
"""

import re
from functools import partial

import pytest
import torch
from language import ALONE, MixtureNet, Net, Step, on, train

from core import ConfigurationError, CoreError, ModuleError
from core.precision import MixedPrecision
from core_parallel import MeshParallelStrategy


class _Untold(Net):
    tensor_parallel_plan = None


@pytest.mark.slow
def test_a_model_without_a_plan_is_refused_by_name():
    def _error(rank):
        with pytest.raises(ModuleError) as caught:
            train(rank, lambda: Step(_Untold), max_steps=1)
        return str(caught.value)

    errors = on(pipeline=2, tensor=2).run(_error)
    expected = "_Untold has no plan|Step has no plan"
    assert any(re.search(expected, error) for error in errors), errors


@pytest.mark.slow
def test_cut_layers_between_the_parts_of_a_pipeline_are_refused():
    class _Without(Net):
        """Its parts leave out a block."""

        def pipeline(self):
            return [self.start, *self.blocks[1:], self.head]

    with pytest.raises(CoreError, match=r"Block 'net\.blocks\.0' was called between the parts of"):
        on(pipeline=2, tensor=2).run(partial(train, make=partial(Step, _Without), max_steps=1))


def test_options_of_units_are_refused_beside_a_pipeline():
    with pytest.raises(
        ConfigurationError, match=r"forward_prefetch=\.\.\.\) isn't there yet with a pipeline"
    ):
        MeshParallelStrategy(pipeline=2, shard=2, forward_prefetch=True)


@pytest.mark.parametrize("axes", [{"pipeline": 2, "shard": 2}, {"tensor": 2}], ids=str)
def test_another_way_of_activation_checkpointing_is_refused_with_its_cure(axes):
    with pytest.raises(
        ConfigurationError, match="Give activation_checkpointing='units' to Trainer or Fabric"
    ):
        MeshParallelStrategy(**axes, activation_checkpointing=True)


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("mesh", "make", "frozen"),
    [
        # of the first stage nothing learns
        ({"pipeline": 2, "tensor": 2, "schedule": "1F1B"}, Net, True),
        ({"data": 2, "expert": 2}, MixtureNet, False),
        ({"data": 2, "shard": 2, "expert": 2}, MixtureNet, False),
    ],
    ids=str,
)
def test_an_overflow_of_one_rank_is_one_of_all(mesh, make, frozen):
    class _OnCPU(MixedPrecision):
        """float16, also on a CPU."""

        def __init__(self):
            super().__init__(
                torch.float16,
                scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3),
            )

        def connect(self, strategy):
            """Learn nothing."""

    class _Overflows(Step):
        """Gradients of the head, which the last stage has, overflow on the last rank in one
        step.
        """

        def __init__(self, make, frozen):
            super().__init__(make)
            self.float()
            self.seen = []
            self.net.head.register_full_backward_pre_hook(self.spoil)
            for part in (self.net.start, self.net.blocks[0]) if frozen else ():
                part.requires_grad_(False)
            self.scale.requires_grad_(not frozen)

        def spoil(self, module, gradients):
            strategy = self.trainer.strategy
            spoils = (
                strategy.global_rank == strategy.world_size - 1
                and self.trainer.global_step == 2
                and not self.seen[2:]
            )
            return tuple(one * float("inf") if spoils else one for one in gradients)

        def on_train_batch_end(self, *_):
            self.seen.append(self.trainer.strategy.precision_plugin.scaler.get_scale())

    def _overflow(rank, make, frozen):
        module, options = (
            _Overflows(make, frozen),
            {"max_epochs": 1, "plugins": [rank.environment, _OnCPU()]},
        )
        weights, _ = train(rank, lambda: module, gradient_clip_val=0.3, **options)
        return module.trainer.global_step, module.seen, weights

    ((steps, scales, expected),) = ALONE.run(_overflow, make, frozen)
    assert steps == 3, "of four batches one overflows"
    for own_steps, own_scales, weights in on(**mesh).run(_overflow, make, frozen):
        assert (own_steps, own_scales) == (steps, scales)
        # float16 rounds small gradients to other signs: far less apart than one step of Adam moves
        # them.
        apart = torch.cat(
            [(weights[name] - value).abs().flatten() for name, value in expected.items()]
        )
        assert apart.mean() < 1e-3
