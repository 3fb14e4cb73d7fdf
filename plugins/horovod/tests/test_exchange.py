"""Gradients and states between two ranks: each option, and what Horovod would do wrong, or wait for
in vain.
"""

import copy

import pytest
import torch
from torch import nn

from core import ConfigurationError, ModuleError
from core.strategies import HorovodStrategy
from core_testing import Backend

TWO = Backend(HorovodStrategy, num_processes=2)


def data(rows=8):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(1)).double()


def net(sparse=False):
    torch.manual_seed(0)
    return nn.Embedding(5, 2, sparse=sparse).double() if sparse else nn.Linear(3, 2).double()


def set_up(rank, **options):
    fabric = rank.fabric(rank.backend.strategy(**options))
    module = net()
    model, optimizer = fabric.setup(
        module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    )
    return fabric, module, model, optimizer


def gradients(rank, options, num_backwards=1):
    """Gradients after so many backwards of one batch each."""
    fabric, module, model, _ = set_up(rank, **options)
    for part in data()[fabric.global_rank :: fabric.world_size].chunk(num_backwards):
        fabric.backward(model(part).square().mean())
    found = module.weight.grad.clone()
    fabric.teardown()
    return found


def parameter_of_one_rank(rank, options):
    """Gradients where only rank 0 uses a parameter, or the message of the refusal."""
    fabric = rank.fabric(rank.backend.strategy(**options))
    module = nn.ModuleList([net(), net(), net()])
    fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    batch = data()[fabric.global_rank :: fabric.world_size]
    try:
        loss = module[0](batch).square().mean()
        if fabric.global_rank == 0:
            loss = loss + module[1](batch).square().mean()
        fabric.backward(loss)
    except ModuleError as error:
        return str(error)
    return [part.weight.grad for part in module]


def expected(num_samples=8):
    module = net()
    module(data()[:num_samples]).square().mean().backward()
    return module.weight.grad


def assert_all(found, wanted, tolerance=1e-12):
    for one in found:
        torch.testing.assert_close(one, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("options", "factor", "tolerance"),
    [
        ({}, 1, 1e-12),
        ({"op": "Sum"}, 2, 1e-12),
        ({"gradient_predivide_factor": 2.0}, 1, 1e-12),
        ({"groups": 1}, 1, 1e-12),
        ({"fusion_threshold_mb": 0, "cycle_time_ms": 0.5}, 1, 1e-12),
        ({"compression": "fp16"}, 1, 1e-2),
    ],
)
def test_a_gradient_is_that_of_all_ranks(options, factor, tolerance):
    assert_all(TWO.run(gradients, options), factor * expected(), tolerance)


def test_two_modules_share_a_backward():
    """Each gradient has a name of its own, by which Horovod finds it on the other rank."""

    def of_two_modules(rank):
        """Gradients of two modules, alike but for their names, after one backward through both."""
        fabric = rank.fabric()
        modules = [net(), net()]
        models = [
            fabric.setup(own, torch.optim.SGD(own.parameters(), lr=0.1))[0] for own in modules
        ]
        batch = data()[fabric.global_rank :: fabric.world_size]
        fabric.backward(
            sum(factor * model(batch).square().mean() for factor, model in enumerate(models, 1))
        )
        found = [own.weight.grad.clone() for own in modules]
        fabric.teardown()
        return found

    for first, second in TWO.run(of_two_modules):
        assert_all([first, second / 2], expected())


def test_halves_travel_in_half_precision():
    found = TWO.run(gradients, {"compression": "fp16"})[0]
    assert torch.equal(found, found.half().double())


def test_passes_are_summed_before_they_are_exchanged():
    assert_all(TWO.run(gradients, {"backward_passes_per_step": 2}, 2), 2 * expected())
    first, second = TWO.run(gradients, {"backward_passes_per_step": 3}, 2)
    assert not torch.allclose(first, second), "they were exchanged before the third backward"


def test_a_step_exchanges_what_was_held_back():
    def step_before_all_passes(rank):
        """Weights after a step that comes before the third backward, which would have exchanged
        gradients.
        """
        fabric, module, model, optimizer = set_up(rank, backward_passes_per_step=3)
        for part in data()[fabric.global_rank :: fabric.world_size].chunk(2):
            fabric.backward(model(part).square().mean())
        optimizer.step()
        found = module.weight.detach().clone()
        fabric.teardown()
        return found

    assert_all(TWO.run(step_before_all_passes), net().weight.detach() - 0.1 * 2 * expected())


def test_a_second_backward_into_a_sum_is_refused():
    def second_sum(rank):
        """The message of a backward that adds to a sum."""
        try:
            gradients(rank, {"op": "Sum"}, num_backwards=2)
        except ConfigurationError as error:
            return str(error)

    for message in TWO.run(second_sum):
        assert "op='Sum': the gradient of 'weight' is a sum over ranks already" in message


def test_a_parameter_that_one_rank_uses():
    """Its gradient is half of that rank's; what nobody uses has none, where Horovod makes zeros of
    it.
    """
    for used, of_one, unused in TWO.run(parameter_of_one_rank, {}):
        torch.testing.assert_close(used, expected())
        assert of_one is not None
        assert unused is None


def test_a_parameter_that_one_rank_uses_in_a_group_is_refused():
    for message in TWO.run(parameter_of_one_rank, {"groups": 1}):
        assert "1 of 2 ranks have a gradient of '1." in message
        assert "HorovodStrategy(groups=None)" in message


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(as_dense):
    def sparse_gradient(rank, as_dense):
        """The gradient of an embedding, whose rows other ranks use too, dense."""
        fabric = rank.fabric(rank.backend.strategy(sparse_as_dense=as_dense))
        module = net(sparse=True)
        model, _ = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        fabric.backward(model(torch.tensor([0, 1 + fabric.global_rank])).square().sum())
        found = module.weight.grad.to_dense().clone()
        fabric.teardown()
        return found

    weight = net(sparse=True).weight.detach()
    wanted = torch.zeros_like(weight)
    wanted[:3] = weight[:3] * torch.tensor([2.0, 1.0, 1.0], dtype=torch.double)[:, None]
    assert_all(TWO.run(sparse_gradient, as_dense), wanted)


def test_an_optimizers_state_is_that_of_rank_0():
    """And where there is none yet, none is made: Horovod's own function would step, and weights
    would decay.
    """

    def state_of_rank_0(rank):
        """Momenta, learning rate and weights of an optimizer that was another one on each rank."""
        fabric, module = rank.fabric(), net()
        optimizer = torch.optim.AdamW(
            module.parameters(), lr=0.1 * (rank.number + 1), weight_decay=0.5
        )
        before = copy.deepcopy(module.state_dict())
        fabric.setup(module, optimizer)
        untouched = torch.equal(module.weight, before["weight"]) and not optimizer.state
        fabric.teardown()

        fabric, module = rank.fabric(), net()
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
        (module(data()).square().mean() * (rank.number + 1)).backward()
        optimizer.step()
        fabric.setup(module, optimizer)
        moments = optimizer.state[module.weight]
        found = (
            untouched,
            optimizer.param_groups[0]["lr"],
            moments["exp_avg"].clone(),
            float(moments["step"]),
        )
        fabric.teardown()
        return found

    first, second = TWO.run(state_of_rank_0)
    assert first[0]
    assert second[0]
    assert first[1] == second[1] == 0.1
    assert torch.equal(first[2], second[2])
    assert first[3] == second[3] == 1


@pytest.mark.parametrize(("scales", "wanted"), [(False, 0.1), (True, 0.2)])
def test_the_learning_rate_is_scaled_only_where_that_is_asked(scales, wanted):
    def scaled_rate(rank, scales):
        """The learning rate after set-up, or the message of the refusal where a scheduler has noted
        it.
        """
        fabric, module = rank.fabric(rank.backend.strategy(scale_learning_rate=scales)), net()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        fabric.setup(module, optimizer)
        scheduled = torch.optim.SGD(module.parameters(), lr=0.1)
        torch.optim.lr_scheduler.StepLR(scheduled, 1)
        try:
            fabric.setup_optimizers(scheduled)
            message = ""
        except ConfigurationError as error:
            message = str(error)
        fabric.teardown()
        return optimizer.param_groups[0]["lr"], message

    for rate, message in TWO.run(scaled_rate, scales):
        assert rate == wanted
        assert ("a scheduler holds the learning rate" in message) == scales


def test_a_parameter_that_is_not_contiguous_is_refused():
    def channels_last(rank):
        """The message of the refusal of a parameter that isn't contiguous."""
        fabric, module = rank.fabric(), nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)
        model, _ = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        try:
            fabric.backward(model(torch.ones(1, 2, 4, 4)).sum())
        except ConfigurationError as error:
            return str(error)

    for message in TWO.run(channels_last):
        assert "the parameter 'weight' isn't contiguous" in message
