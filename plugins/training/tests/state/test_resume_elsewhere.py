"""A run goes on with other ranks, other workers, in another process, and from what somebody else
calls last or best.
"""

import dataclasses
import glob
import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from core import Callback
from core.callbacks import ModelCheckpoint
from core.contract import CheckpointNotFoundError, ConfigurationError
from core.data import set_epoch, shard_loader
from core_testing import in_one_process
from core_training.stage_data.sample_seeds import seed_samples
from support import late_torchmetrics as torchmetrics
from support.resuming import Case, Net, Samples, SaveAlways, count_batches, sgd_by_epoch, train
from support.small_nets import quiet_trainer
from support.tiny import Tiny, loader, make_trainer


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def test_other_ranks(tmp_path):
    """That weights go on the same is the conformance kit's; here what is logged, and samples that
    are augmented.
    """

    def epoch_values(events):
        return [event[3] for event in events if event[0] == "epoch"]

    def global_losses(events_by_rank):
        """The mean over ranks for each batch: every rank has as many samples."""
        losses = [
            [event[3] for event in events if event[0] == "batch"] for events in events_by_rank
        ]
        return [sum(ranks) / len(ranks) for ranks in zip(*losses, strict=True)]

    class Exact(Net):
        """In double precision and without noise, so that several ranks compute what one does."""

        def __init__(self, optimizers, norm=nn.LayerNorm):
            super().__init__(optimizers, nn.LayerNorm)
            self.layers[2] = nn.Identity()
            self.double()

        def training_step(self, batch, batch_idx):
            return super().training_step([part.double() for part in batch], batch_idx)

    case = Case(sgd, net=Exact, augments=True, trainer={"seed_samples": True})
    whole, _, _ = train(case, SaveAlways(str(tmp_path)))

    def go_on():
        return train(case, num_ranks=2, ckpt_path=str(tmp_path / f"{batch}.ckpt"), seed=99)[0]

    for batch in ("003-batch", "005-epoch"):
        resumed = in_one_process(go_on)
        losses = global_losses(resumed)
        assert len(losses) == 10 - int(batch[:3])
        assert losses == pytest.approx(global_losses([whole])[-len(losses) :], rel=1e-12)
        for values, expected in zip(
            epoch_values(resumed[0])[::-1], epoch_values(whole)[::-1], strict=False
        ):
            assert values["train_loss_epoch"] == pytest.approx(
                expected["train_loss_epoch"], rel=1e-6
            )
            assert values["largest"] == expected["largest"]


def test_other_workers(tmp_path):
    def case(num_workers):
        return Case(
            augments=True, loader={"num_workers": num_workers}, trainer={"seed_samples": True}
        )

    events, weights, _ = train(case(0), SaveAlways(str(tmp_path)))
    resumed, resumed_weights, _ = train(case(2), ckpt_path=tmp_path / "002-batch.ckpt", seed=99)
    assert resumed == events[-len(resumed) :]
    assert resumed_weights == weights


def test_samples_are_augmented_otherwise_in_each_epoch_and_alike_in_each_run():
    def read(epoch):
        set_epoch(loader, epoch)
        return [inputs.tolist() for inputs, _ in loader]

    loader = seed_samples(
        shard_loader(DataLoader(Samples(augments=True), batch_size=4), rank=0, size=1, seed=7)
    )
    assert read(0) == read(0)
    assert read(0) != read(1)


def test_samples_of_a_stream_cannot_be_seeded():
    with pytest.raises(
        ConfigurationError, match="seed_samples=True needs a DataLoader over a map-style data set"
    ):
        quiet_trainer(limit_val_batches=0, seed_samples=True).fit(
            Net(sgd), [[torch.ones(2, 3), torch.ones(2, 1)]]
        )


# how a run stops ----------------------------------------------------------------------------------


@pytest.mark.parametrize("max_steps", range(1, 10))
def test_a_limit_within_an_epoch_leaves_the_rest_of_it_to_be_done(tmp_path, max_steps):
    case = Case(sgd_by_epoch, validates=True)
    events, weights, _ = train(case)
    saver = ModelCheckpoint(tmp_path, filename="end", save_top_k=1, every_n_epochs=10)
    stopped, _, _ = train(case, saver, max_steps=max_steps, enable_checkpointing=True)
    resumed, resumed_weights, _ = train(case, ckpt_path=tmp_path / "end.ckpt", seed=99)
    assert count_batches(stopped) == max_steps
    assert stopped + resumed == events
    assert resumed_weights == weights


def test_what_an_unfinished_epoch_has_logged_is_there_to_see(tmp_path):
    trainer, module = quiet_trainer(max_steps=3, limit_val_batches=0), Net(sgd)
    trainer.fit(module, DataLoader(Samples(), batch_size=4))
    losses = [event[3] for event in module.events]
    assert trainer.callback_metrics["train_loss_epoch"].item() == pytest.approx(sum(losses) / 3)


@pytest.mark.parametrize("batch", [1, 3, 6])
def test_a_stop_within_a_window_waits_for_its_end(tmp_path, batch):
    class Stopper(Callback):
        """Asks for a stop, and for a checkpoint, in the middle of an accumulation window."""

        def on_train_batch_end(self, trainer, module, *_):
            if trainer.progress.total_batches == batch:
                trainer.should_stop = True
                trainer.save_checkpoint(path)
                assert not path.exists()

    path = tmp_path / "stop.ckpt"
    case = Case(trainer={"accumulate_grad_batches": 2})
    events, weights, _ = train(case)
    stopped, _, _ = train(case, Stopper())
    assert count_batches(stopped) == batch + 1
    resumed, resumed_weights, _ = train(case, ckpt_path=path, seed=99)
    assert resumed == events[-len(resumed) :]
    assert resumed_weights == weights


def test_the_sanity_check_leaves_no_trace_in_training():
    case = Case(validates=True)
    with_check = [event for event in train(case)[0] if event[0] == "batch"]
    without = [event for event in train(case, num_sanity_val_steps=0)[0] if event[0] == "batch"]
    assert with_check == without


def test_time_counts_over_restarts(tmp_path):
    case = Case(sgd)
    train(case, SaveAlways(str(tmp_path)))
    elapsed_s = [
        torch.load(path)["progress"]["elapsed_s"]
        for path in sorted(glob.glob(f"{tmp_path}/*-batch.ckpt"))
    ]
    assert elapsed_s == sorted(elapsed_s)
    assert elapsed_s[0] > 0
    resumed, _, _ = train(case, ckpt_path=tmp_path / "007-batch.ckpt", max_time={"microseconds": 1})
    assert resumed == []


# metrics objects ----------------------------------------------------------------------------------


def test_torchmetrics_objects_go_on(tmp_path):
    class WithMetrics(Net):
        def __init__(self, optimizers, **options):
            super().__init__(optimizers, **options)
            self.mean, self.listed = torchmetrics.MeanMetric(), torchmetrics.CatMetric()

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.mean.update(loss.detach())
            self.listed.update(batch[0][:, 0])
            self.log("metric", self.mean, on_step=False, on_epoch=True)
            return loss

        def on_train_epoch_end(self):
            self.events.append(("listed", self.listed.compute().tolist()))
            self.listed.reset()

    case = Case(sgd, net=WithMetrics)
    events, _, _ = train(case, SaveAlways(str(tmp_path)))
    for batch in ("002-batch", "005-batch", "009-batch"):
        resumed, _, _ = train(case, ckpt_path=tmp_path / f"{batch}.ckpt", seed=99)
        assert resumed == events[-len(resumed) :]


# last and best ------------------------------------------------------------------------------------


def test_best_and_last_are_what_the_checkpoint_callback_says(tmp_path):
    saver = ModelCheckpoint(tmp_path, "{epoch}", monitor="val_loss", save_top_k=-1)
    trainer, module = make_trainer(tmp_path, saver, max_epochs=3), Tiny([3.0, 1.0, 2.0])
    trainer.fit(module, loader(), loader())
    for name, epoch in (("best", 1), ("last", 2)):
        trainer.validate(module, loader(), ckpt_path=name)
        assert trainer.ckpt_path == str(tmp_path / f"epoch={epoch}.ckpt")


@pytest.mark.parametrize(
    ("savers", "name", "error", "message"),
    [
        (
            [],
            "best",
            ConfigurationError,
            "ckpt_path='best' asks a ModelCheckpoint that has a monitor",
        ),
        (
            [{}],
            "best",
            ConfigurationError,
            r"asks a ModelCheckpoint that has a monitor, .* ckpt_path='last' for the newest",
        ),
        (
            [{"monitor": "val_loss"}],
            "best",
            CheckpointNotFoundError,
            "'best': ModelCheckpoint has saved nothing yet",
        ),
        (
            [{"dirpath": "own"}],
            "last",
            CheckpointNotFoundError,
            r"ckpt_path='last': no checkpoint is in .*own",
        ),
    ],
)
def test_nothing_to_evaluate_is_an_error_that_says_what_was_asked(
    tmp_path, savers, name, error, message
):
    trainer = make_trainer(
        tmp_path, *(ModelCheckpoint(**each) for each in savers), enable_checkpointing=bool(savers)
    )
    with pytest.raises(error, match=message):
        trainer.validate(Tiny(), loader(), ckpt_path=name)


@pytest.mark.parametrize("logger", [False, None], ids=["no logger", "a folder for each run"])
def test_last_goes_on_with_an_earlier_run_of_the_same_command(tmp_path, logger, caplog):
    steps = []
    with caplog.at_level(logging.INFO, "core"):
        for max_epochs in (1, 2):
            trainer = make_trainer(tmp_path, logger=logger, max_epochs=max_epochs)
            trainer.fit(Tiny(), loader(), loader(), ckpt_path="last")
            steps.append((trainer.global_step, trainer.progress.total_batches))
    assert steps == [(4, 4), (8, 8)]
    told = [
        record.getMessage()
        for record in caplog.records
        if "ckpt_path='last'" in record.getMessage()
    ]
    assert "begins anew" in told[0]
    assert "goes on from" in told[1]


def test_a_second_fit_without_a_checkpoint_begins_its_epoch_anew():
    trainer, module = quiet_trainer(max_steps=3, limit_val_batches=0), Net(sgd)
    trainer.fit(module, DataLoader(Samples(), batch_size=4))
    trainer.options = dataclasses.replace(trainer.options, max_steps=8)
    trainer.fit(module, DataLoader(Samples(), batch_size=4))
    assert [event[2] for event in module.events if event[:2] == ("batch", 0)] == [
        0,
        1,
        2,
        0,
        1,
        2,
        3,
        4,
    ]
