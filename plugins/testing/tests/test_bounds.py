"""The messages of comparisons with a bound: they say which bound would hold."""

import pytest
import torch

from core_testing.training import TrainingRecord, assert_close_losses, assert_equal_tensors


def test_losses_beyond_the_bound_say_how_far_they_are():
    """The first loss that is too far, and, of all steps, the largest distance: what `within` has to
    be.
    """
    run, expected = TrainingRecord(losses=[2.0, 1.5, 0.5]), TrainingRecord(losses=[2.0, 1.25, 1.0])
    assert_close_losses(run, expected, 0.25)
    with pytest.raises(
        AssertionError, match=r"step 1: 1\.5, .* 0\.25 of the largest loss at most, where 0\.1 "
    ):
        assert_close_losses(run, expected, 0.1)


@pytest.mark.parametrize(
    ("wanted", "part"), [([1.0, 4.0], "0.25 of the largest value"), ([0.0, 0.0], "inf of")]
)
def test_weights_beyond_the_bound_say_how_far_they_are(wanted, part):
    expected = torch.tensor(wanted)
    found = {"w": expected + torch.tensor([1.0, 0.0])}
    with pytest.raises(AssertionError, match=rf"w is off by 1: {part}.* where 0\.1 is allowed"):
        assert_equal_tensors(found, {"w": expected}, 0.1)
