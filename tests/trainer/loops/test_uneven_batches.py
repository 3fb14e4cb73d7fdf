"""Every sample counts once, and alike, where ranks have different numbers of them, or none."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from core import ConfigurationError, Module, Trainer
from core.callbacks import LambdaCallback
from core_ddp import DDPStrategy
from core_testing import in_one_process
from support import late_torchmetrics as torchmetrics
from support.small_nets import QUIET

QUIET = {**QUIET, "limit_val_batches": 0, "max_epochs": 2}


def data(num_samples):
    inputs = torch.randn(num_samples, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())


class Net(Module):
    """Logs in every way, and has statistics of two kinds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 1, dtype=torch.float64)
        self.register_buffer("num_seen", torch.zeros(()))
        self.metric = torchmetrics.MeanMetric()
        self.kept = torchmetrics.CatMetric()
        self.steps, self.num_kept = [], []

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        self.num_seen += len(inputs)
        loss = nn.functional.mse_loss(self.layer(inputs), targets)
        self.metric.update(inputs.sum(1))
        self.kept(inputs[:, 0])
        self.log("metric", self.metric, on_step=False, on_epoch=True)
        self.log("largest", inputs.max(), on_step=False, on_epoch=True, reduce_fx="max")
        self.log("num_samples", float(len(inputs)), on_step=False, on_epoch=True, reduce_fx="sum")
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("least", inputs.min(), reduce_fx="min", sync_dist=True)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("number_at_end", float(len(batch[0])), on_step=False, on_epoch=True, reduce_fx="sum")
        shown = self.trainer.callback_metrics
        self.steps.append([shown["loss_step"].item(), shown["least"].item()])

    def on_train_epoch_end(self):
        self.num_kept.append(sum(map(len, self.kept.value)))
        self.kept.reset()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def train(num_ranks, num_samples, batch_size, window=1, **options):
    strategy = {"strategy": DDPStrategy(forward_sync_buffers=False)} if num_ranks > 1 else {}
    module = Net()
    trainer = Trainer(devices=num_ranks, accumulate_grad_batches=window, **strategy, **(QUIET | options))
    torch.manual_seed(1)
    trainer.fit(module, DataLoader(data(num_samples), batch_size=batch_size, shuffle=True))
    weights = torch.cat([part.detach().flatten() for part in module.parameters()]).tolist()
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return weights, logged, module.steps, trainer.global_step, int(module.num_seen), module.num_kept


def close(values):
    return pytest.approx(values, rel=0, abs=1e-12)


# (samples, batch of all ranks together, accumulation window)
UNEVEN = [(13, 6, 1), (15, 6, 1), (31, 6, 3), (7, 6, 3)]


@pytest.mark.numbers
@pytest.mark.parametrize("num_ranks", [2, 3, pytest.param(6, marks=pytest.mark.slow)])
def test_ranks_train_as_one_device_on_any_number_of_samples(num_ranks):
    expected = [train(1, samples, batch, window) for samples, batch, window in UNEVEN]

    def train_all():
        return [train(num_ranks, samples, batch // num_ranks, window) for samples, batch, window in UNEVEN]

    ranks = in_one_process(train_all, ranks=num_ranks)
    for found in ranks:
        for (weights, logged, steps, num_steps, *_), theirs, case in zip(found, expected, UNEVEN, strict=True):
            assert weights == close(theirs[0]), case
            assert logged.pop("metric") == pytest.approx(theirs[1]["metric"], abs=1e-6), case  # in float32
            assert logged == close({name: theirs[1][name] for name in logged}), case
            assert num_steps == theirs[3], case
            assert steps == [close(values) for values in theirs[2]], case
            assert logged["num_samples"] == logged["number_at_end"] == case[0]
    for number, (num_samples, _, _) in enumerate(UNEVEN):
        assert sum(found[number][4] for found in ranks) == 2 * num_samples, "a buffer"
        for epoch in range(2):
            assert sum(found[number][5][epoch] for found in ranks) == num_samples, "a metric"


class Evaluated(Module):
    """Counts what it evaluates, in its step and in a hook."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1, dtype=torch.float64)
        self.metric = torchmetrics.SumMetric()
        self.at_end = []

    def test_step(self, batch, batch_idx):
        self.metric.update(len(batch[0]))
        self.log("metric", self.metric)
        self.log("num_samples", float(len(batch[0])), reduce_fx="sum")
        self.log("loss", nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

    def predict_step(self, batch, batch_idx):
        return self.layer(batch[0])

    def on_test_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0):
        self.at_end.append(len(batch[0]))


def evaluate(num_ranks, strategy, num_samples):
    trainer = Trainer(devices=num_ranks, strategy=strategy, **QUIET)
    torch.manual_seed(0)
    module, loader = Evaluated(), DataLoader(data(num_samples))
    (metrics,) = trainer.test(module, loader)
    predicted = trainer.predict(module, loader)
    return metrics, torch.cat(predicted).flatten().tolist(), module.at_end


@pytest.mark.numbers
@pytest.mark.parametrize(
    ("num_ranks", "strategy"), [(3, "fsdp"), pytest.param(2, "fsdp", marks=pytest.mark.slow), (2, "ddp")]
)
def test_an_odd_evaluation_counts_each_sample_once(num_ranks, strategy):
    """A rank without a sample stays with those that gather weights."""
    expected, predicted, at_end = evaluate(1, "auto", 7)
    ranks = in_one_process(evaluate, num_ranks, strategy, 7, ranks=num_ranks)
    for metrics, _, _ in ranks:
        assert metrics == close(expected)
    assert ranks[0][1] == close(predicted)
    assert sum(sum(mine) for _, _, mine in ranks) == sum(at_end) == 7


class Stream(IterableDataset):
    """This rank's part of some data, of which each rank may have another number of samples."""

    def __init__(self, num_samples):
        self.num_samples = num_samples

    def __iter__(self):
        rank = dist.get_rank() if dist.is_initialized() else 0
        start = sum(self.num_samples[:rank])
        whole = data(sum(self.num_samples))
        return iter([whole[index] for index in range(start, start + self.num_samples[rank])])


def train_on_stream(num_ranks, num_samples, window):
    module = Net()
    trainer = Trainer(
        devices=num_ranks, strategy="ddp", accumulate_grad_batches=window, use_distributed_sampler=False, **QUIET
    )
    loader = DataLoader(Stream(num_samples), batch_size=2)
    trainer.fit(module, loader)
    weights = torch.cat([part.detach().flatten() for part in module.parameters()]).tolist()
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return weights, logged, trainer.global_step


def steps_by_hand(num_samples, window, num_epochs=2):
    """Weights after plain steps of torch on the exact mean over all samples of each window."""
    module, whole, starts = Net(), data(sum(num_samples)), [sum(num_samples[:rank]) for rank in range(len(num_samples))]
    optimizer = module.configure_optimizers()
    parts = [list(range(start, start + number)) for start, number in zip(starts, num_samples, strict=True)]
    for _ in range(num_epochs):
        for start in range(0, max(num_samples), 2 * window):
            taken = [index for part in parts for index in part[start : start + 2 * window]]
            inputs, targets = whole[taken]
            nn.functional.mse_loss(module.layer(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat([part.detach().flatten() for part in module.parameters()]).tolist()


STREAMS = [((7, 4, 2), 1), ((7, 4, 2), 3), ((13, 1, 8), 3), ((4, 4, 4), 1)]


@pytest.mark.numbers
def test_streams_of_different_lengths_go_on_until_all_are_out():
    def train_all():
        return [train_on_stream(3, *case) for case in STREAMS]

    expected = [steps_by_hand(*case) for case in STREAMS]
    for found in in_one_process(train_all, ranks=3):
        for (weights, logged, num_steps), theirs, (num_samples, window) in zip(found, expected, STREAMS, strict=True):
            assert weights == close(theirs), num_samples
            assert logged["num_samples"] == logged["number_at_end"] == sum(num_samples)
            assert num_steps == 2 * -(-max(num_samples) // (2 * window))


class Normed(Net):
    """Keeps statistics of what it sees, with the weight 0 too."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3, dtype=torch.float64)

    def training_step(self, batch, batch_idx):
        return super().training_step([self.norm(batch[0]), batch[1]], batch_idx)


def resume_streams(folder):
    """This rank's final state, and what runs end with that go on after each step."""

    def train(ckpt_path=None, *, saves=False):
        module = Normed()
        save = LambdaCallback(
            on_train_batch_end=lambda trainer, *_: trainer.save_checkpoint(folder / f"{trainer.global_step}.ckpt")
        )
        options = QUIET | {"max_epochs": 1, "callbacks": save if saves else []}
        trainer = Trainer(devices=2, strategy="ddp", use_distributed_sampler=False, **options)
        loader = DataLoader(Stream((4, 12)), batch_size=2)
        trainer.fit(module, loader, ckpt_path=ckpt_path)
        return [value.tolist() for value in module.state_dict().values()]

    whole = train(saves=True)
    return whole, [train(folder / f"{step}.ckpt") for step in range(1, 6)]


@pytest.mark.slow
def test_a_run_goes_on_after_a_step_that_one_stream_has_not_come_to(tmp_path):
    for whole, resumed in in_one_process(resume_streams, tmp_path):
        assert resumed == [whole] * 5


def refused_stream():
    with pytest.raises(ConfigurationError, match=r"gave no batch in this epoch on 1 of 2 ranks .*: 1\)"):
        train_on_stream(2, (3, 0), 1)


def test_a_stream_without_a_batch_is_refused_on_all_ranks():
    in_one_process(refused_stream)


class Weighted(Module):
    """Logs the mean over items of each step, and notes it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1, dtype=torch.float64)
        self.steps = []

    def training_step(self, batch, batch_idx):
        mask = batch[0][:, 0] > 0
        values = batch[0].square().sum(1)[mask]
        self.log("mean", values.mean(), on_step=True, on_epoch=True, sync_dist=True)
        return {"loss": (self.layer(batch[0]).squeeze(1) * mask).sum() / mask.sum().clamp(min=1), "weight": mask.sum()}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.steps.append(self.trainer.callback_metrics["mean_step"].item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def means_of_steps(num_ranks):
    module = Weighted()
    trainer = Trainer(devices=num_ranks, **({"strategy": "ddp"} if num_ranks > 1 else {}), **{**QUIET, "max_epochs": 1})
    trainer.fit(module, DataLoader(data(13), batch_size=6 // num_ranks))
    return [*module.steps, trainer.callback_metrics["mean_epoch"].item()]


@pytest.mark.numbers
def test_the_mean_of_a_step_over_ranks_is_that_of_all_items():
    expected = means_of_steps(1)
    for found in in_one_process(means_of_steps, 3, ranks=3):
        assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)
