"""Gradients and states between two ranks: each option, and what Horovod would do wrong, or wait for
in vain.
"""

import exchange_ranks as ranks
import pytest
import torch

from core.strategies import HorovodStrategy
from core_testing import Backend

TWO = Backend(HorovodStrategy, num_processes=2)


def expected(num_samples=8):
    module = ranks.net()
    module(ranks.data()[:num_samples]).square().mean().backward()
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
    assert_all(TWO.run(ranks.gradients, options), factor * expected(), tolerance)


def test_two_modules_share_a_backward():
    """Each gradient has a name of its own, by which Horovod finds it on the other rank."""
    for first, second in TWO.run(ranks.of_two_modules):
        assert_all([first, second / 2], expected())


def test_halves_travel_in_half_precision():
    found = TWO.run(ranks.gradients, {"compression": "fp16"})[0]
    assert torch.equal(found, found.half().double())


def test_passes_are_summed_before_they_are_exchanged():
    assert_all(TWO.run(ranks.gradients, {"backward_passes_per_step": 2}, 2), 2 * expected())
    first, second = TWO.run(ranks.gradients, {"backward_passes_per_step": 3}, 2)
    assert not torch.allclose(first, second), "they were exchanged before the third backward"


def test_a_step_exchanges_what_was_held_back():
    assert_all(
        TWO.run(ranks.step_before_all_passes), ranks.net().weight.detach() - 0.1 * 2 * expected()
    )


def test_a_second_backward_into_a_sum_is_refused():
    for message in TWO.run(ranks.second_sum):
        assert "op='Sum': the gradient of 'weight' is a sum over ranks already" in message


def test_a_parameter_that_one_rank_uses():
    """Its gradient is half of that rank's; what nobody uses has none, where Horovod makes zeros of
    it.
    """
    for used, of_one, unused in TWO.run(ranks.parameter_of_one_rank, {}):
        torch.testing.assert_close(used, expected())
        assert of_one is not None
        assert unused is None


def test_a_parameter_that_one_rank_uses_in_a_group_is_refused():
    for message in TWO.run(ranks.parameter_of_one_rank, {"groups": 1}):
        assert "1 of 2 ranks have a gradient of '1." in message
        assert "HorovodStrategy(groups=None)" in message


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(as_dense):
    weight = ranks.net(sparse=True).weight.detach()
    wanted = torch.zeros_like(weight)
    wanted[:3] = weight[:3] * torch.tensor([2.0, 1.0, 1.0], dtype=torch.double)[:, None]
    assert_all(TWO.run(ranks.sparse_gradient, as_dense), wanted)


def test_an_optimizers_state_is_that_of_rank_0():
    """And where there is none yet, none is made: Horovod's own function would step, and weights
    would decay.
    """
    first, second = TWO.run(ranks.state_of_rank_0)
    assert first[0]
    assert second[0]
    assert first[1] == second[1] == 0.1
    assert torch.equal(first[2], second[2])
    assert first[3] == second[3] == 1


@pytest.mark.parametrize(("scales", "wanted"), [(False, 0.1), (True, 0.2)])
def test_the_learning_rate_is_scaled_only_where_that_is_asked(scales, wanted):
    for rate, message in TWO.run(ranks.scaled_rate, scales):
        assert rate == wanted
        assert ("a scheduler holds the learning rate" in message) == scales


def test_a_parameter_that_is_not_contiguous_is_refused():
    for message in TWO.run(ranks.channels_last):
        assert "the parameter 'weight' isn't contiguous" in message
