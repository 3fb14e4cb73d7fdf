import random
import warnings
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from core import CheckpointError
from core.data import sampler_of, set_epoch, shard_loader


def share(loader, rank=0, size=1, seed=7, stage="fit"):
    return shard_loader(loader, rank=rank, size=size, seed=seed, stage=stage)


def shares(make_loader, size, **options):
    """The samples of each rank in one epoch. Ranks build their loaders apart, as processes do."""
    return [samples(share(make_loader(), rank, size, **options)) for rank in range(size)]


def samples(loader):
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader]


def flat(batches):
    return [sample for batch in batches for sample in batch]


def global_order(ranks):
    """The samples of all ranks, step by step."""
    steps = max(map(len, ranks))
    return [
        sample
        for step in range(steps)
        for rank in ranks
        if step < len(rank)
        for sample in rank[step]
    ]


def loader(num_samples=12, batch_size=2, **options):
    return DataLoader(range(num_samples), batch_size=batch_size, **options)


# The user's order is kept -------------------------------------------------------------------------


def test_a_sequential_loader_stays_sequential():
    assert shares(loader, 2) == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]


def test_a_step_of_two_ranks_is_a_whole_batch_of_one():
    alone = samples(share(loader(16, 4, shuffle=True)))
    first, second = shares(lambda: loader(16, 2, shuffle=True), 2)
    assert [here + there for here, there in zip(first, second, strict=True)] == alone
    assert sorted(flat(alone)) == list(range(16)) != flat(alone)


def weighted():
    return WeightedRandomSampler([0.0] * 6 + [1.0] * 6, num_samples=8)


def subset():
    return SubsetRandomSampler([1, 3, 5, 7, 9, 11])


def with_replacement():
    return RandomSampler(range(12), replacement=True, num_samples=70)


class FromNumpy(Sampler):
    def __iter__(self):
        return iter(np.random.permutation(12).tolist())

    def __len__(self):
        return 12


@pytest.mark.parametrize("sampler", [weighted, subset, with_replacement, FromNumpy])
def test_ranks_draw_one_order_wherever_their_generators_stand(sampler):
    def make():
        torch.rand(random.randrange(9))
        np.random.rand(random.randrange(9))
        return loader(sampler=sampler())

    ranks = shares(make, 2)
    assert global_order(ranks) == global_order([samples(share(make()))])
    assert len(global_order(ranks)) == len(sampler())
    if sampler is weighted:
        assert min(global_order(ranks)) >= 6


def test_a_sampler_that_draws_without_end_is_shared_too():
    class FromPython(Sampler):
        """Draws whenever it is asked for one more, and never ends."""

        def __iter__(self):
            while True:
                yield random.randrange(12)

    first, second = (share(loader(sampler=FromPython()), rank, 2) for rank in range(2))
    alone = samples(islice(share(loader(sampler=FromPython(), batch_size=4)), 5))
    pairs = zip(samples(islice(first, 5)), samples(islice(second, 5)), strict=True)
    assert [here + there for here, there in pairs] == alone


def test_drawing_leaves_the_generators_of_the_model_alone():
    def draw(before=lambda: None):
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        before()
        return torch.rand(1), random.random(), np.random.rand()

    sharded = share(loader(sampler=FromNumpy()), 0, 2)
    assert draw(lambda: next(iter(sampler_of(sharded)))) == draw()


def test_the_users_own_generator_is_drawn_from():
    def make(batch_size):
        return loader(12, batch_size, shuffle=True, generator=torch.Generator().manual_seed(3))

    raw, ours = make(2), share(make(2))
    for epoch in range(3):
        set_epoch(ours, epoch)
        assert samples(ours) == samples(raw)
    assert global_order(shares(lambda: make(1), 2)) == global_order([samples(make(2))])


def test_with_the_users_generator_workers_are_seeded_as_without_us():
    def seeds(rank=None, size=1):
        generator = torch.Generator().manual_seed(3)
        raw = DataLoader(
            Seeds(), shuffle=True, generator=generator, num_workers=1, persistent_workers=True
        )
        return next(iter(raw if rank is None else share(raw, rank, size))).item()

    assert seeds(0) == seeds()
    assert seeds(0, 2) != seeds(1, 2)


class Buckets(Sampler):
    """Batches of one digit each, of different lengths, in an order that changes with the epoch."""

    epoch = 0

    def __iter__(self):
        batches = [[0] * 3, [1], [2] * 2, [3] * 3, [4] * 2]
        return iter(batches[self.epoch :] + batches[: self.epoch])

    def __len__(self):
        return 5

    def set_epoch(self, epoch):
        self.epoch = epoch


def test_a_users_batches_stay_whole_and_only_the_last_is_split():
    ranks = shares(lambda: DataLoader(range(5), batch_sampler=Buckets()), 2)
    assert ranks == [[[0, 0, 0], [2, 2], [4]], [[1], [3, 3, 3], [4]]]


def test_a_users_sampler_is_told_the_epoch():
    sharded = share(DataLoader(range(5), batch_sampler=Buckets()), 1, 2)
    set_epoch(sharded, 2)
    assert samples(sharded) == [[3, 3, 3], [0, 0], [1]]  # the last borrowed one of [0, 0, 0]


def test_a_subclass_of_batch_sampler_is_sharded_by_batches():
    class Shuffled(BatchSampler):
        """Shuffles in blocks, through the global generator of whatever it wraps."""

    def make():
        return DataLoader(
            range(12), batch_sampler=Shuffled(RandomSampler(range(12)), 3, drop_last=False)
        )

    assert flat(samples(share(make()))) == global_order(shares(make, 2))
    assert len(share(make(), 0, 2)) == 2


def test_a_batch_sampler_of_torch_given_by_the_user():
    def make(batch_size):
        batches = BatchSampler(SequentialSampler(range(10)), batch_size, drop_last=True)
        return DataLoader(range(10), batch_sampler=batches)

    assert shares(lambda: make(2), 2) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_a_loader_that_does_not_collate():
    assert shares(lambda: DataLoader(range(5), batch_size=None), 2) == [[0, 2, 4], [1, 3, 4]]


def test_a_list_of_indices_is_a_sampler():
    assert shares(lambda: loader(sampler=[5, 3, 1, 0]), 2) == [[[5, 3]], [[1, 0]]]


def test_epochs_and_seeds_differ_and_come_back():
    sharded, orders = share(loader(shuffle=True)), []
    for epoch in (0, 1, 0):
        set_epoch(sharded, epoch)
        orders.append(samples(sharded))
    assert orders[0] == orders[2] != orders[1]
    assert samples(share(loader(shuffle=True), seed=1)) != orders[0]


# Every sample once --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("stage", ["fit", "test"])
def test_the_length_is_the_number_of_batches(size, batch_size, drop_last, stage):
    for num_samples in range(1, 20):
        for rank in range(size):
            sharded = share(
                loader(num_samples, batch_size, drop_last=drop_last), rank, size, stage=stage
            )
            assert len(sharded) == len(samples(sharded)), (num_samples, rank)


def test_in_training_a_rank_without_a_sample_takes_one_that_another_has():
    assert shares(lambda: loader(5, 1), 2) == [[[0], [2], [4]], [[1], [3], [4]]]


def test_in_evaluation_it_ends_a_batch_earlier():
    assert shares(lambda: loader(5, 1), 2, stage="validate") == [[[0], [2], [4]], [[1], [3]]]


# Re-created loaders -------------------------------------------------------------------------------


def test_a_subclass_with_its_own_init_and_iter():
    class OwnLoader(DataLoader):
        def __init__(self, name):
            super().__init__(range(8), batch_size=2, collate_fn=lambda batch: (name, batch))
            self.name = name

        def __iter__(self):
            yield from super().__iter__()
            yield "end"

    own = OwnLoader("mine")
    sharded = share(own, 1, 2)
    assert type(sharded) is OwnLoader
    assert list(sharded) == [("mine", [2, 3]), ("mine", [6, 7]), "end"]


def test_the_users_loader_is_not_changed():
    own = loader(shuffle=True, generator=torch.Generator().manual_seed(0))
    before = dict(vars(own))
    samples(share(own, 0, 2))
    assert vars(own) == before


def test_a_loader_is_not_sharded_twice():
    once = share(loader(), 0, 2)
    assert share(once, 0, 2) is once


class Seeds:
    """Tells the seed of the worker that loads a sample."""

    def __getitem__(self, index):
        return torch.utils.data.get_worker_info().seed

    def __len__(self):
        return 8


def test_workers_read_one_share_epoch_after_epoch():
    own = loader(num_workers=1, persistent_workers=True, prefetch_factor=3)
    list(own)
    sharded = share(own, 1, 2)
    for epoch in range(2):
        set_epoch(sharded, epoch)
        assert samples(sharded) == [[2, 3], [6, 7], [10, 11]]
    assert sharded.prefetch_factor == 3


def test_workers_of_different_ranks_augment_differently():
    def seeds(rank, epoch):
        torch.manual_seed(0)
        sharded = share(DataLoader(Seeds(), batch_size=4, num_workers=1), rank, 2)
        set_epoch(sharded, epoch)
        return next(iter(sharded))[0].item()

    assert len({seeds(0, 0), seeds(0, 1), seeds(1, 0)}) == 3
    assert seeds(0, 0) == seeds(0, 0)


# What isn't sharded -------------------------------------------------------------------------------


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


@pytest.mark.parametrize(
    ("unsharded", "name"), [(DataLoader(Stream()), "a DataLoader over Stream"), ([1, 2], "list")]
)
def test_an_iterable_is_left_alone_with_a_warning(unsharded, name):
    with pytest.warns(
        UserWarning, match=f"{name} can't be sharded .*each of the 2 ranks reads all"
    ) as caught:
        assert share(unsharded, 0, 2) is unsharded
    assert "use_distributed_sampler=False" in str(caught[0].message)


def test_one_warning_for_all_ranks_and_none_on_one_device():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        share(DataLoader(Stream()), 1, 2)
        share(DataLoader(Stream()), 0, 1)


def test_a_loader_that_the_user_sharded_is_not_sharded_again():
    def make(rank):
        return loader(
            8, sampler=DistributedSampler(range(8), num_replicas=2, rank=rank, shuffle=True)
        )

    for rank in range(2):
        raw, ours = make(rank), share(make(rank), rank, 2)
        for epoch in range(2):
            raw.sampler.set_epoch(epoch)
            set_epoch(ours, epoch)
            assert samples(ours) == samples(raw)


@pytest.mark.parametrize(("num_replicas", "own_rank"), [(1, 0), (2, 0)])
def test_a_sampler_that_gives_another_share_is_named(num_replicas, own_rank):
    raw = loader(8, sampler=DistributedSampler(range(8), num_replicas, own_rank))
    with pytest.warns(
        UserWarning, match=f"gives share 0 of {num_replicas} to a rank that has share 1 of 2"
    ):
        share(raw, 1, 2)


# Position -----------------------------------------------------------------------------------------


def take(sharded, number):
    """Batches as a loop takes them; the loader may have loaded more."""
    taken = []
    for batch in sharded if number else ():
        sampler_of(sharded).advance()
        taken.append(batch.tolist())
        if len(taken) == number:
            break
    return taken


def shuffled(batch_size=2, **options):
    return loader(23, batch_size, shuffle=True, **options)


def own_generator(batch_size=2, **options):
    return shuffled(batch_size, generator=torch.Generator().manual_seed(1), **options)


@pytest.mark.parametrize("make", [shuffled, own_generator])
@pytest.mark.parametrize(
    ("num_taken", "before", "after"),
    [
        *((number, {}, {}) for number in (0, 1, 4, 6)),
        (4, {}, {"num_workers": 1}),
        (4, {"num_workers": 1, "persistent_workers": True}, {}),
    ],
)
def test_an_epoch_goes_on_where_it_was_left(make, num_taken, before, after):
    """Epoch 1 of 3."""
    whole, expected = share(make(4)), []
    for epoch in range(3):
        set_epoch(whole, epoch)
        expected.append(samples(whole))
    stopped = share(make(4, **before))
    samples(stopped)
    set_epoch(stopped, 1)
    taken = take(stopped, num_taken)
    state = sampler_of(stopped).state_dict()
    assert state["position"] == len(flat(taken))
    resumed = share(make(4, **after), seed=99)
    sampler_of(resumed).load_state_dict(state)
    set_epoch(resumed, 1)
    assert taken + samples(resumed) == expected[1]
    set_epoch(resumed, 2)
    assert samples(resumed) == expected[2]


@pytest.mark.parametrize(
    ("size", "other_size", "num_taken"), [(1, 2, 5), (2, 1, 2), (2, 3, 2), (2, 1, 0)]
)
def test_other_ranks_go_on_in_the_same_global_order(size, other_size, num_taken):
    whole = global_order(shares(shuffled, size))
    stopped = [share(shuffled(), rank, size) for rank in range(size)]
    before = global_order([take(rank, num_taken) for rank in stopped])
    states = [sampler_of(rank).state_dict() for rank in stopped]
    assert all(state == states[0] for state in states)
    resumed = [share(shuffled(), rank, other_size, seed=99) for rank in range(other_size)]
    for rank in resumed:
        sampler_of(rank).load_state_dict(states[0])
    assert before + global_order(list(map(samples, resumed))) == whole


def test_the_position_is_what_the_user_was_given_not_what_workers_loaded():
    sharded = share(shuffled(num_workers=2, prefetch_factor=4), 0, 2)
    take(sharded, 3)
    assert sampler_of(sharded).position == 3 * 4


def test_the_same_epoch_keeps_its_position_and_another_begins_anew():
    sharded = share(shuffled())
    take(sharded, 2)
    set_epoch(sharded, 0)
    assert sampler_of(sharded).position == 4
    set_epoch(sharded, 1)
    assert sampler_of(sharded).position == 0


def test_a_foreign_state_is_refused():
    with pytest.raises(
        CheckpointError,
        match=r"A sampler's state has no \['generator', 'generator_after', 'position', 'seed'\]",
    ):
        sampler_of(share(shuffled())).load_state_dict({"epoch": 1})


def test_a_state_of_a_sampler_with_a_generator_needs_one():
    state = sampler_of(share(own_generator())).state_dict()
    with pytest.raises(
        CheckpointError, match="had a generator of its own, and RandomSampler has none"
    ):
        sampler_of(share(shuffled())).load_state_dict(state)
