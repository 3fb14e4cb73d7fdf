"""The effect of each option of an algorithm, and the state of a rank, in two processes: by numbers
done by hand.
"""

import pytest
import torch
from torch import nn

from core import Capability
from core_bagua import BaguaStrategy
from core_testing import Backend
from core_testing.ranks import end_kept_ranks

TWO = Backend(lambda: "single_device", num_processes=2, kept_for=__name__)


@pytest.fixture(scope="module", autouse=True)
def _ranks_end():
    yield
    end_kept_ranks()


def begun(rank, algorithm, momentum=0.0, lr=0.0, **options):
    """A Fabric with a layer of one weight, which begins as 5 on all ranks, and has a buffer."""
    fabric, layer = rank.fabric(BaguaStrategy(algorithm, **options)), nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(5.0 + rank.number)
    layer.register_buffer("seen", torch.tensor([7.0 + rank.number]))
    model, optimizer = fabric.setup(
        layer, torch.optim.SGD(layer.parameters(), lr=lr, momentum=momentum)
    )
    return fabric, layer, model, optimizer


def gradient(fabric, layer, model, value=None):
    """The gradient of 1 on rank 0 and of 3 on rank 1, or another one, after the exchange."""
    layer.weight.grad = None
    value = 1.0 + 2 * fabric.global_rank if value is None else value
    fabric.backward((model(torch.ones(1, 1)) * value).sum())
    return layer.weight.grad.item()


@pytest.mark.parametrize("algorithm", ["gradient_allreduce", "bytegrad"])
@pytest.mark.parametrize(("average", "factor"), [(None, 1), (True, 1), (False, 2)])
def test_gradients_are_averaged_or_summed_where_they_are_not_to_stay(algorithm, average, factor):
    def gradients(rank, algorithm, options):
        fabric, layer, model, _ = begun(rank, algorithm, **options)
        first = gradient(fabric, layer, model)
        with fabric.no_backward_sync(model):
            alone = gradient(fabric, layer, model)
        with fabric.no_backward_sync(model, enabled=False):
            found = [first, alone, gradient(fabric, layer, model)]
        fabric.teardown()
        return found

    of_ranks = TWO.run(gradients, algorithm, {"average": average})
    for own, found in zip([1.0, 3.0], of_ranks, strict=True):
        assert found == pytest.approx([2.0 * factor, own, 2.0 * factor], abs=1e-2)


@pytest.mark.parametrize(
    ("options", "is_weighted"), [({}, True), ({"average": True}, True), ({"average": False}, False)]
)
def test_only_a_mean_over_ranks_takes_weighted_losses(options, is_weighted):
    assert (Capability.WEIGHTED_LOSSES in BaguaStrategy(**options).capabilities) is is_weighted


def test_gradients_are_averaged_in_the_steps_before_weights_are():
    def gradients_of_steps(rank):
        fabric, layer, model, optimizer = begun(
            rank, "async", warmup_steps=2, sync_interval_ms=10**6
        )
        found = []
        for _ in range(3):
            found.append(gradient(fabric, layer, model))
            optimizer.step()
        fabric.teardown()
        return found

    assert TWO.run(gradients_of_steps) == [[2.0, 2.0, 1.0], [2.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    ("interval", "expected"),
    [(1, [[5.5, 6.0, 6.5, 7.0]] * 2), (2, [[5.5, 5.5, 6.5, 6.5], [5.5, 6.5, 6.5, 7.5]])],
)
def test_ranks_talk_in_every_step_of_an_interval(interval, expected):
    def weights_of_steps(rank, algorithm, interval):
        """The weight after each step; before it each rank moves away by its number."""
        fabric, layer, _, optimizer = begun(rank, algorithm, communication_interval=interval)
        found = []
        for _ in range(4):
            layer.weight.data.add_(rank.number)
            layer.weight.grad = torch.zeros(1, 1)
            optimizer.step()
            found.append(layer.weight.item())
        kept = fabric.strategy.rank_state_dict()
        fabric.strategy.load_rank_state_dict({**kept, "num_steps": 7})
        found.append(fabric.strategy.rank_state_dict()["num_steps"])
        fabric.teardown()
        return [*found, kept["num_steps"]]

    found = TWO.run(weights_of_steps, "decentralized", interval)
    assert found == [[*weights, 7, 4] for weights in expected]


def test_the_rest_of_a_compression_is_kept_finite():
    def left_out(rank):
        """The rest of a gradient that compression leaves out, and after one that isn't finite."""
        fabric, layer = rank.fabric(BaguaStrategy("bytegrad")), nn.Linear(300, 1, bias=False)
        model, _ = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.0))
        inputs = torch.linspace(0, 1 + rank.number, 300).square()[None]
        fabric.backward(model(inputs).sum())
        largest = fabric.strategy.rank_state_dict()["rest"]["weight"].abs().max().item()
        layer.weight.grad = None
        fabric.backward(model(inputs * float("inf")).nansum())
        after = fabric.strategy.rank_state_dict()["rest"]["weight"]
        fabric.teardown()
        return largest, bool(after.isfinite().all())

    for largest, is_finite in TWO.run(left_out):
        assert 0 < largest < 0.02
        assert is_finite


def test_one_model_is_made_of_all_with_moments_and_buffers():
    def one_model(rank):
        fabric, layer, _, optimizer = begun(
            rank, "decentralized", momentum=0.9, lr=1.0, communication_interval=100
        )
        started = layer.weight.item(), layer.seen.item()
        layer.weight.grad = torch.full((1, 1), 1.0 + rank.number)
        optimizer.step()
        layer.seen.fill_(rank.number)
        fabric.strategy.synchronize_model()
        (entry,) = optimizer.optimizer.state.values()
        found = [*started, layer.weight.item(), entry["momentum_buffer"].item(), layer.seen.item()]
        fabric.teardown()
        return found

    assert TWO.run(one_model) == [[5.0, 7.0, 3.5, 1.5, 0.0]] * 2
