"""Where two runs part, from their losses and from how far their tensors are apart."""

import pytest

from core_plan.compared.figures import Result, Spread
from core_plan.compared.numbers import (
    first_parted_loss,
    first_parting,
    judge,
    sentence,
    steps_to_weigh,
)
from core_plan.compared.task import Task


def test_losses_part_by_a_share_of_the_largest():
    expected = [8.0, 4.0, 0.0]
    assert first_parted_loss([8.0, 4.007, 0.0], expected, 1e-3) is None
    assert first_parted_loss([8.0, 4.0, 0.009], expected, 1e-3) == 3
    assert first_parted_loss([8.0, float("nan"), 0.0], expected, 1e-3) == 2


def test_the_first_tensor_of_the_first_step_is_named():
    found = {
        "0": [("a", 0.0, 0.0), ("b", 0.0, 0.0), ("c", 0.0, 0.0)],
        "1": [("a", 0.01, 0.1), ("b", 0.7, 0.2), ("c", 0.9, 0.3)],
        "10": [("a", 1.0, 0.0), ("b", 1.0, 0.0), ("c", 1.0, 0.0)],
    }
    parting = first_parting(found, {})
    assert (parting.step, parting.tensor, parting.distance, parting.num_parted) == (1, "b", 0.7, 2)
    assert parting.step_before == 0


def test_what_rounding_does_to_the_reference_is_no_fault():
    # The bias of attention's keys has no gradient but rounding, which Adam makes a whole step of.
    found = {"1": [("keys.bias", 1.4, 1e-3), ("weight", 0.2, 1e-3)]}
    noise = {"1": [("keys.bias", 1.3, 1e-3), ("weight", 1e-6, 1e-9)]}
    parting = first_parting(found, noise)
    assert (parting.tensor, parting.num_parted) == ("weight", 1)


def test_first_weights_must_be_equal():
    parting = first_parting({"0": [("a", 0.001, 0.1)], "1": [("a", 0.001, 0.1)]}, {})
    assert parting.step == 0


def test_weights_are_compared_at_each_step_up_to_the_one_that_parts():
    assert steps_to_weigh([None, None], 50) == [0, 1, 2, 3]
    assert steps_to_weigh([None, 7], 50) == list(range(8))
    far = steps_to_weigh([200], 500)
    assert far[:17] == list(range(17))
    assert far[-1] == 200
    assert len(far) <= 34


def test_other_samples_in_a_step_make_losses_incomparable():
    reference = Result("ddp", "measured", losses=[1.0], samples_per_step=8.0)
    other = Result("parallel:pipeline=2", "measured", losses=[2.0], samples_per_step=4.0)
    found = judge(other, reference, 1e-3, None, {})
    assert not found["comparable"]
    assert "--global-batch-size 8" in sentence(found, "ddp")


def test_a_loss_that_parts_as_by_rounding_is_said_to():
    reference = Result("ddp", "measured", losses=[1.0, 1.0], samples_per_step=8.0)
    other = Result("fsdp", "measured", losses=[1.0, 1.1], samples_per_step=8.0)
    noisy = {"losses": [1.0, 1.05], "distances": {}}
    assert "as a few units of rounding make it" in sentence(
        judge(other, reference, 1e-3, {}, noisy), "ddp"
    )
    quiet = {"losses": [1.0, 1.0001], "distances": {}}
    assert "as a few units" not in sentence(judge(other, reference, 1e-3, {}, quiet), "ddp")


def test_ranks_of_one_shard_count_once():
    def rank(number, seconds):
        marks = [(2, 0.0, 8), (4, seconds, 16)]
        of_rank = {
            "rank": number,
            "marks": marks,
            "losses": [[(1.0 + number, 4)]] * 4,
            "samples_per_step": 4.0,
        }
        return of_rank | {"num_shards": 1, "world_size": 2, "num_steps": 4, "has_dropout": False}

    result = Result("parallel:pipeline=2")
    result.add_round([rank(0, 1.0), rank(1, 2.0)])
    assert result.samples_per_s.values == [4.0], "eight samples until the last rank has them"
    assert result.samples_per_step == 4
    assert result.losses == [1.5] * 4


@pytest.mark.parametrize("steps", [2, 3, 7, 50, 1000])
def test_the_clock_is_read_after_the_warm_up_and_in_at_most_ten_blocks(steps):
    task = Task("ddp", "", 1, 1, steps, 0, 0.0)
    assert task.marks[0] == max(1, -(-steps // 5))
    assert task.marks[-1] <= steps
    assert 2 <= len(task.marks) <= 12


def test_a_spread_is_the_median_and_the_quartiles():
    spread = Spread.of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (spread.low, spread.median, spread.high) == (2.0, 3.0, 4.0)
    assert Spread.of([]) is None
    assert Spread.of([5.0]).low == 5.0
