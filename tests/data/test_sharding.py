from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.data.sharding import rebalance_last, shard_batches, shard_samples

sizes = st.integers(1, 5)
totals = st.integers(0, 80)


def lending(total, batch_size, size):
    return list(rebalance_last(shard_samples(range(total), batch_size, size=size), size))


def in_order(steps):
    return list(chain.from_iterable(chain.from_iterable(steps)))


@given(totals, st.integers(1, 6), sizes)
def test_every_sample_comes_once_and_in_order(total, batch_size, size):
    assert in_order(shard_samples(range(total), batch_size, size=size)) == list(range(total))
    assert in_order(lending(total, batch_size, size)) == list(range(total))


@given(totals, st.integers(2, 6), sizes)
def test_where_steps_lend_no_rank_goes_without_a_batch(total, batch_size, size):
    """Then nobody waits in a collective for a rank that has no batch."""
    steps = lending(total, batch_size, size)
    if total >= size:
        assert all(share for step in steps for share in step)


@given(totals, st.integers(1, 6), sizes)
def test_shares_of_a_step_are_even(total, batch_size, size):
    for step in (
        *shard_samples(range(total), batch_size, size=size),
        *lending(total, batch_size, size),
    ):
        lengths = list(map(len, step))
        assert max(lengths) - min(lengths) <= 1
        assert max(lengths) <= batch_size


@given(totals, st.integers(1, 6), sizes)
def test_a_step_is_the_batch_that_one_device_would_have(total, batch_size, size):
    """But for the last two, if the last has to borrow."""
    whole = batch_size * size
    alone = [list(range(total))[start : start + whole] for start in range(0, total, whole)]
    steps, lent = (
        shard_samples(range(total), batch_size, size=size),
        lending(total, batch_size, size),
    )
    assert [in_order([step]) for step in steps] == alone
    lent = [in_order([step]) for step in lent]
    assert len(lent) == len(alone)
    assert lent[:-2] == alone[:-2]
    if not 0 < total % whole < size:
        assert lent == alone


@given(totals, st.integers(1, 6), sizes)
def test_drop_last_leaves_whole_steps(total, batch_size, size):
    steps = list(shard_samples(range(total), batch_size, size=size, drop_last=True))
    assert all(len(share) == batch_size for step in steps for share in step)
    assert len(steps) == total // (batch_size * size)


@given(totals, st.integers(1, 6), sizes, sizes, st.integers(0, 20))
def test_going_on_repeats_the_steps_that_were_left_with_any_number_of_ranks(
    total, batch_size, size, other, num_steps
):
    steps = list(shard_samples(range(total), batch_size, size=size))
    position = len(in_order(steps[:num_steps]))
    assert (
        list(shard_samples(range(total), batch_size, size=size, position=position))
        == steps[num_steps:]
    )
    after = shard_samples(range(total), batch_size, size=other, position=position)
    assert in_order(steps[:num_steps]) + in_order(after) == list(range(total))


batches = st.lists(st.integers(1, 5), max_size=12).map(
    lambda lengths: [
        [f"{number}{index}" for index in range(length)] for number, length in enumerate(lengths)
    ]
)


@given(batches, sizes, st.integers(0, 12))
def test_whole_batches_stay_whole_and_the_rest_is_shared_out(batches, size, num_steps):
    steps = list(shard_batches(batches, size=size))
    assert in_order(steps) == in_order([batches])
    whole = len(batches) // size - 1
    assert [share for step in steps[: max(0, whole)] for share in step] == batches[
        : max(0, whole) * size
    ]
    position = len(in_order(steps[:num_steps]))
    assert in_order(shard_batches(batches, size=size, position=position)) == in_order(
        steps[num_steps:]
    )


def test_a_last_step_with_too_few_samples_leaves_a_rank_without_or_borrows_from_the_one_before():
    assert list(shard_samples(range(9), 2, size=2)) == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
        [[8], []],
    ]
    assert lending(9, 2, 2) == [[[0, 1], [2, 3]], [[4, 5], [6]], [[7], [8]]]


@pytest.mark.parametrize("size", [1, 2])
def test_a_sampler_may_fill_the_same_list_again(size):
    def reuses():
        batch = []
        for start in range(0, 8, 2):
            batch[:] = [start, start + 1]
            yield batch

    assert in_order(shard_batches(reuses(), size=size)) == list(range(8))
