"""The last window of an epoch, and the number of batches, for each kind of loader that a user may
pass.
"""

import os
from itertools import chain

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)

from core import CombinedLoader, ConfigurationError, Module, Trainer
from core.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from core_testing import in_one_process
from support.small_nets import QUIET

QUIET = {**QUIET, "limit_val_batches": 0, "max_epochs": 2}


class Net(Module):
    """Has the mean of a batch as its gradient, and notes that of each step."""

    def __init__(self, skips_at=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.skips_at, self.gradients, self.seen = skips_at, [], []

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == self.skips_at else None

    def training_step(self, batch, batch_idx):
        while not isinstance(batch, torch.Tensor):
            batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
        self.seen += [(self.current_epoch, number) for number in batch.flatten().tolist()]
        return (self.weight * batch).mean()

    def on_before_optimizer_step(self, optimizer):
        self.gradients.append(self.weight.grad.item())

    def validation_step(self, batch, batch_idx):
        self.log("num_samples", float(len(batch)), reduce_fx="sum")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def rows(num):
    return torch.arange(1.0, num + 1, dtype=torch.float64).reshape(-1, 1)


def each(num=11, size=2):
    return list(rows(num).split(size))


class Stream(IterableDataset):
    def __init__(self, num=11):
        self.num = num

    def __iter__(self):
        return iter(rows(self.num))


class Optimist(Stream):
    def __len__(self):
        return 100


class Own:
    """Batches of a class of the user's own, which is wrong about their number."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return 9

    def __iter__(self):
        return iter(self.batches)


ALONE = {
    "map-style": DataLoader(TensorDataset(rows(11)), 2),
    "stream": DataLoader(Stream(), 2),
    "stream with a wrong length": DataLoader(Optimist(), 2),
    "list": each(),
    "own with a wrong length": Own(each()),
    "batch sampler": DataLoader(
        TensorDataset(rows(11)),
        batch_sampler=BatchSampler(SequentialSampler(range(11)), 2, drop_last=False),
    ),
}


def gradients(loader, **options):
    Trainer(**{"accumulate_grad_batches": 4, **QUIET, **options}).fit(net := Net(), loader)
    return net.gradients


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("limit", [None, 10])
def test_the_last_window_is_the_mean_over_its_samples(name, limit):
    """11 samples in batches of 2: a window of 8, and one of 2 and 1. Each is a mean over samples,
    not over batches.
    """
    assert gradients(ALONE[name], limit_train_batches=limit) == pytest.approx([4.5, 10.0] * 2)


@pytest.mark.parametrize(
    ("loader", "first", "last"),
    [
        (
            {
                "a": DataLoader(TensorDataset(rows(12)), 2),
                "b": DataLoader(TensorDataset(rows(4)), 2),
            },
            4.5,
            10.5,
        ),
        (CombinedLoader([DataLoader(TensorDataset(rows(12)), 2), each(20)]), 4.5, 10.5),
        (CombinedLoader([each(4), DataLoader(Stream(8), 2)], "sequential"), 2.5, 6.5),
        # a batch is a sample there, as the sampler sees it
        (DataLoader(each(), batch_size=None), 4.5, 10.25),
    ],
    ids=["dict", "min_size", "sequential", "without batches"],
)
def test_batches_that_nobody_counts_the_samples_of_weigh_alike_in_a_short_window(
    loader, first, last
):
    assert gradients(loader) == pytest.approx([first, last] * 2)


def test_two_ranks_have_the_windows_of_one_device():
    def gradients_on_ranks():
        rank = int(os.environ["RANK"])
        shares = [each(23)[rank::2], Own(each(23)[rank::2]), DataLoader(Stream((10, 2)[rank]), 2)]
        options = {"devices": 2, "strategy": "ddp"}
        several = gradients({"a": DataLoader(rows(24), 2), "b": DataLoader(rows(4), 2)}, **options)
        return *(
            gradients(share, use_distributed_sampler=False, **options) for share in shares
        ), several

    for listed, own, uneven, several in in_one_process(gradients_on_ranks):
        assert listed == own == pytest.approx([8.5, 20.0] * 2)
        assert uneven == pytest.approx([3.9, 9.5] * 2), (
            "the second rank has no batch in the second window"
        )
        assert several == pytest.approx([8.5, 20.5] * 2)


def test_a_rank_without_any_batch_is_refused_on_all():
    def refused_stream():
        share = DataLoader(Stream((3, 0)[int(os.environ["RANK"])]), 2)
        with pytest.raises(
            ConfigurationError, match=r"gave no batch in this epoch on 1 of 2 ranks .*: 1\)"
        ):
            gradients(share, devices=2, strategy="ddp", use_distributed_sampler=False)

    in_one_process(refused_stream)


@pytest.mark.parametrize(("window", "num_read"), [(1, [1, 2, 3, 4, 5]), (2, [2, 2, 4, 4, 5])])
def test_a_window_is_read_when_its_first_step_is_due(window, num_read):
    """Between two windows no batch is held, so that a position that is saved there is the
    loop's.
    """
    read, held = [], []

    class Noting(Net):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            held.append(len(read))

    def batches():
        for batch in each(10):
            read.append(batch)
            yield batch

    Trainer(accumulate_grad_batches=window, **{**QUIET, "max_epochs": 1}).fit(Noting(), batches())
    assert held == num_read


# the rest of an epoch that is left out ------------------------------------------------------------


@pytest.mark.parametrize("data", [DataLoader(rows(6)), each(6, 1)], ids=["map-style", "list"])
def test_a_hook_that_leaves_out_the_rest_of_an_epoch_leaves_out_the_window_that_has_begun(
    tmp_path, data
):
    options = {**QUIET, "accumulate_grad_batches": 2, "max_epochs": 3, "enable_checkpointing": True}
    saving = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    trainer = Trainer(callbacks=saving, default_root_dir=tmp_path, **options)
    trainer.fit(net := Net(skips_at=3), data)
    assert (net.gradients, trainer.global_step) == ([1.5] * 3, 3)
    rest = Net(skips_at=3)
    Trainer(**{**options, "enable_checkpointing": False}).fit(
        rest, data, ckpt_path=tmp_path / "epoch=0.ckpt"
    )
    assert torch.equal(rest.weight, net.weight)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_no_rank_has_anything_left_of_a_window_that_was_left_out(strategy):
    class Sharded(Net):
        """Has a parameter that can be cut into shards."""

        def __init__(self):
            super().__init__(skips_at=3)
            self.weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))

        def on_before_optimizer_step(self, optimizer):
            """Its gradient is this rank's shard."""

        def on_train_end(self):
            self.whole = getattr(self.weight, "full_tensor", self.weight.detach)().tolist()

        def training_step(self, batch, batch_idx):
            return (self.weight.sum() * batch).mean()

    def weights_of_ranks():
        options = {**QUIET, "devices": 2, "accumulate_grad_batches": 2, "max_epochs": 3}
        Trainer(strategy=strategy, **options).fit(net := Sharded(), DataLoader(rows(12)))
        return net.whole

    for weights in in_one_process(weights_of_ranks):
        assert weights == [-7.5, -7.5], "three steps with the mean of 1 to 4"


def test_a_loss_with_a_weight_leaves_nothing_behind_either():
    class Weighted(Net):
        def training_step(self, batch, batch_idx):
            return {"loss": super().training_step(batch, batch_idx), "weight": len(batch)}

    Trainer(accumulate_grad_batches=2, **QUIET).fit(net := Weighted(skips_at=3), each(6, 1))
    assert net.gradients == [1.5] * 2


# loaders of another length in each epoch ----------------------------------------------------------


class Growing(Dataset):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 12 if self.epoch == 2 else 6

    def __getitem__(self, index):
        return torch.tensor(float(index))


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("by tokens", [12, 12, 12]),
        ("redrawn", [12, 12, 12]),
        ("growing", [6, 6, 12]),
        ("several", [12, 12, 12]),
    ],
)
def test_the_number_of_batches_is_asked_for_in_each_epoch(name, expected, num_ranks):
    class ByTokens:
        """12 samples in batches of 4, 3 or 2: 3, 4 and 6 of them."""

        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __len__(self):
            return 12 // (4, 3, 2)[self.epoch]

        def __iter__(self):
            return iter(torch.arange(12).split((4, 3, 2)[self.epoch]))

    class Redrawn:
        """The same, with batches that are made when they are asked for."""

        def __init__(self):
            self.sizes, self.made = [4, 3, 2], []

        def __len__(self):
            return len(self.made) or 3

        def __iter__(self):
            self.made = list(torch.arange(12).split(self.sizes.pop(0)))
            yield from self.made

    def make():
        by_tokens = DataLoader(torch.arange(12.0), batch_sampler=ByTokens())
        loaders = {
            "by tokens": by_tokens,
            "redrawn": DataLoader(torch.arange(12.0), batch_sampler=Redrawn()),
            "growing": DataLoader(Growing(), 3, shuffle=True),
            "several": {"a": by_tokens, "b": DataLoader(torch.ones(2))},
        }
        return loaders[name]

    def seen_by_epoch(loader, num_ranks):
        trainer = Trainer(
            **{
                **QUIET,
                "max_epochs": 3,
                "accumulate_grad_batches": 2,
                "devices": num_ranks,
                "strategy": "ddp",
            }
        )
        trainer.fit(net := Net(), loader)
        return net.seen

    seen = chain.from_iterable(in_one_process(seen_by_epoch, make(), num_ranks, ranks=num_ranks))
    assert set(seen) == {
        (epoch, number) for epoch, num in enumerate(expected) for number in range(num)
    }


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, [4, 8, 12]), (0.5, [2, 4, 6]), (3, [4, 6, 6])]
)
def test_validation_data_may_grow(limit, expected):
    data, counts = [torch.zeros(1)] * 4, []

    class Growing(Net):
        def on_validation_epoch_end(self):
            data.extend([torch.zeros(1)] * 4)

        def on_train_epoch_end(self):
            counts.append(self.trainer.callback_metrics["num_samples"].item())

    Trainer(**{**QUIET, "max_epochs": 3, "limit_val_batches": limit}).fit(
        Growing(), each(2), DataLoader(data, 2)
    )
    assert counts == expected


# limits before a short last step ------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 0.5, None])
def test_a_step_lends_nothing_to_one_that_is_not_run(limit):
    class Evaluated(Net):
        def validation_step(self, batch, batch_idx):
            self.log(
                "num_samples",
                float(sum(map(len, batch)) if isinstance(batch, list) else len(batch)),
                reduce_fx="sum",
            )

        def predict_step(self, batch, batch_idx):
            return batch

    def evaluated(num_ranks, limit, size):
        limits = dict.fromkeys(("limit_val_batches", "limit_predict_batches"), limit)
        trainer = Trainer(
            devices=num_ranks, strategy="ddp" if num_ranks > 1 else "auto", **{**QUIET, **limits}
        )
        loader, net = DataLoader(rows(5), size), Evaluated()
        several = CombinedLoader([loader, loader], "max_size")
        validated = [trainer.validate(net, each, verbose=False) for each in (loader, several)]
        return validated, torch.cat(trainer.predict(net, loader)).flatten().tolist()

    expected = evaluated(1, limit, 4)
    assert expected[0][0] == [{"num_samples": 5.0 if limit is None else 4.0}]
    assert in_one_process(evaluated, 2, limit, 2)[0] == expected


def test_a_limited_step_of_several_training_loaders_lends_nothing():
    def trained_on_several():
        options = {
            **QUIET,
            "devices": 2,
            "strategy": "ddp",
            "limit_train_batches": 1,
            "max_epochs": 1,
        }
        Trainer(**options).fit(net := Net(), {"a": DataLoader(rows(5), 2)})
        return [number for _, number in net.seen]

    assert in_one_process(trained_on_several) == [[1.0, 2.0], [3.0, 4.0]]


# estimates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True], ids=["trainer", "module"])
@pytest.mark.parametrize(("schedule", "options"), [({0: 4, 2: 1}, {}), ({1: 3}, {"max_steps": 10})])
def test_the_estimate_of_steps_follows_a_schedule_of_windows(schedule, options, own):
    callbacks, net, estimates = [GradientAccumulationScheduler(schedule)], Net(), []
    trainer = Trainer(callbacks=[] if own else callbacks, **{**QUIET, "max_epochs": 4, **options})
    net.configure_callbacks = lambda: callbacks if own else []
    net.on_train_start = lambda: estimates.append(trainer.estimated_stepping_batches)
    trainer.fit(net, DataLoader(rows(9)))
    assert estimates == [trainer.global_step]
