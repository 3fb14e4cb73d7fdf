"""What each rank's batch weighs among all of its accumulation window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from core.data import sampler_of, shard_loader


def weighed(num_samples, batch_size, size, window=1, num_batches=float("inf"), **options):
    """For each rank its batches, as (samples, weight, ends of windows that are short)."""
    ranks = []
    for rank in range(size):
        loader = shard_loader(
            DataLoader(range(num_samples), batch_size=batch_size, collate_fn=list, **options),
            rank=rank,
            size=size,
            seed=0,
            rebalances=False,
        )
        sampler = sampler_of(loader)
        sampler.set_window(window, lambda: num_batches)
        batches = []
        for number, batch in enumerate(loader):
            if number == num_batches:
                break
            micro_batch = sampler.uneven.pop(number, None)
            batches.append((batch, 1 if micro_batch is None else micro_batch.weight))
        assert not {number for number in sampler.uneven if number < len(batches)}
        ranks.append(batches)
    return ranks


@given(
    st.integers(1, 40), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 9)
)
def test_each_sample_weighs_alike_in_its_window(num_samples, batch_size, size, window, num_batches):
    """Each batch's mean, times its weight, divided by ranks and window: every sample's share is 1 /
    all of them.
    """
    ranks = weighed(num_samples, batch_size, size, window, num_batches)
    assert len({len(batches) for batches in ranks}) == 1
    for start in range(0, len(ranks[0]), window):
        shares = {}
        for batches in ranks:
            for samples, weight in batches[start : start + window]:
                for sample in samples if weight else ():
                    assert sample not in shares
                    shares[sample] = weight / len(samples) / size / window
        assert shares == pytest.approx(dict.fromkeys(shares, 1 / len(shares)))
    whole = num_batches * batch_size * size
    counted = [
        sample for batches in ranks for samples, weight in batches if weight for sample in samples
    ]
    assert sorted(counted) == list(range(min(num_samples, whole)))


def test_batches_of_a_whole_window_have_no_weights():
    loader = shard_loader(
        DataLoader(range(24), batch_size=2), rank=1, size=2, seed=0, rebalances=False
    )
    sampler = sampler_of(loader)
    sampler.set_window(3, lambda: float("inf"))
    assert [len(sampler.uneven) for _ in loader] == [0] * 6


def test_a_rank_without_a_sample_repeats_one_that_weighs_nothing():
    assert weighed(5, 2, 2) == [[([0, 1], 1), ([4], 2)], [([2, 3], 1), ([4], 0)]]


def test_what_an_iteration_before_has_left_is_forgotten():
    loader = shard_loader(
        DataLoader(range(5), batch_size=2), rank=1, size=2, seed=0, rebalances=False
    )
    for _ in range(2):
        assert [len(batch) for batch in loader] == [2, 1]
        assert {
            number: micro_batch.weight for number, micro_batch in sampler_of(loader).uneven.items()
        } == {1: 0}
