"""A run that goes on within an epoch sees each sample of it once, or refuses to."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler

from core import CheckpointError, CombinedLoader
from core_testing import in_one_process
from support.small_nets import Net, fit, quiet_trainer

NUM_SAMPLES = 32


def sample(index):
    return torch.full((4,), float(index))


class Samples(Dataset):
    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return sample(index)


class Stream(IterableDataset):
    def __iter__(self):
        return map(sample, range(NUM_SAMPLES))


class OwnBatches(Sampler):
    """A batch sampler that isn't torch's."""

    def __init__(self, size):
        self.batches = list(BatchSampler(range(NUM_SAMPLES), size, False))

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


LOADERS = {
    "map": lambda size: DataLoader(Samples(), batch_size=size, shuffle=True),
    "map, own batches": lambda size: DataLoader(Samples(), batch_sampler=OwnBatches(size)),
    "stream": lambda size: DataLoader(Stream(), batch_size=size),
    "list": lambda size: [torch.stack([*map(sample, batch)]) for batch in OwnBatches(size)],
}


class Seeing(Net):
    def __init__(self):
        super().__init__()
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen += batch[:, 0].int().tolist()
        return super().training_step(batch / 100, batch_idx)


def train(loader, path, *, strategy="auto", devices=1, **options):
    """Returns the samples that this rank sees. Without `max_steps` it goes on from `path`, else it
    saves there.
    """
    trainer = quiet_trainer(
        **{"max_epochs": 1, "strategy": strategy, "devices": devices, **options}
    )
    module = Seeing()
    stops = "max_steps" in options
    trainer.fit(module, loader, ckpt_path=None if stops else path)
    if stops:
        trainer.save_checkpoint(path)
    return module.seen


@pytest.mark.parametrize("accumulate_grad_batches", [1, 2])
@pytest.mark.parametrize("sizes", [(4, 8), (8, 4), (4, 6)], ids=str)
@pytest.mark.parametrize("kind", ["map", "map, own batches"])
def test_batches_of_another_size(tmp_path, kind, sizes, accumulate_grad_batches):
    before, after = map(LOADERS[kind], sizes)
    options = {"accumulate_grad_batches": accumulate_grad_batches}
    first = train(before, tmp_path / "c", max_steps=1, **options)
    rest = train(after, tmp_path / "c", **options)
    assert len(first) == sizes[0] * accumulate_grad_batches
    assert sorted(first + rest) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("sizes", [(4, 8), (8, 4)], ids=str)
@pytest.mark.parametrize("kind", ["stream", "list"])
def test_what_is_read_again_is_refused_in_other_batches(tmp_path, kind, sizes):
    before, after = map(LOADERS[kind], sizes)
    first = train(before, tmp_path / "c", max_steps=1)
    with pytest.raises(
        CheckpointError,
        match=r"saved within an epoch of a \w+ with .*=\d+, and now it is \d+\. Its order",
    ):
        train(after, tmp_path / "c")
    assert sorted(first + train(before, tmp_path / "c")) == list(range(NUM_SAMPLES))


def test_other_workers_are_refused_where_they_read_in_another_order(tmp_path):
    train(DataLoader(Stream(), batch_size=4), tmp_path / "c", max_steps=1)
    assert (
        len(train(DataLoader(Stream(), batch_size=4, num_workers=1), tmp_path / "c"))
        == NUM_SAMPLES - 4
    )
    with pytest.raises(CheckpointError, match="DataLoader with num_workers=1, and now it is 2"):
        train(DataLoader(Stream(), batch_size=4, num_workers=2), tmp_path / "c")


@pytest.mark.parametrize("is_combined", [False, True])
@pytest.mark.parametrize("num_samples", [NUM_SAMPLES + 4, NUM_SAMPLES - 4])
def test_another_number_of_samples_is_refused_within_an_epoch(tmp_path, num_samples, is_combined):
    def make(number):
        loader = DataLoader([sample(index) for index in range(number)], batch_size=4, shuffle=True)
        return CombinedLoader([loader], "sequential") if is_combined else loader

    train(make(NUM_SAMPLES), tmp_path / "c", max_steps=1)
    says = f"within an epoch of {NUM_SAMPLES} samples, and now the training data has {num_samples}"
    with pytest.raises(CheckpointError, match=says):
        train(make(num_samples), tmp_path / "c")


MORE = DataLoader([sample(index) for index in range(NUM_SAMPLES + 4)], batch_size=8)


@pytest.mark.parametrize(("kind", "after"), [("stream", LOADERS["stream"](8)), ("map", MORE)])
def test_between_epochs_batches_and_data_may_have_another_size(tmp_path, kind, after):
    trainer = fit(Seeing(), LOADERS[kind](4))
    trainer.save_checkpoint(tmp_path / "c")
    assert len(train(after, tmp_path / "c", max_epochs=2)) == (
        NUM_SAMPLES + 4 if after is MORE else NUM_SAMPLES
    )


def test_shares_of_ranks_of_their_own_are_refused_on_another_number(tmp_path):
    own = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False, "max_steps": 1}
    in_one_process(lambda: train(LOADERS["stream"](4), tmp_path / "own", **own))
    with pytest.raises(
        CheckpointError,
        match=r"within an epoch by 2 ranks, of which each read a share of its own .* 1 are",
    ):
        train(LOADERS["stream"](4), tmp_path / "own", use_distributed_sampler=False)
