"""Every sample counts once, and alike, where ranks have different numbers of them, or none."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from core import Module, Trainer
from core.callbacks import LambdaCallback
from core_ddp import DDPStrategy
from core_testing import in_one_process
from support import late_torchmetrics as torchmetrics
from support.small_nets import QUIET

QUIET = {**QUIET, "limit_val_batches": 0, "max_epochs": 2}


def data(num_samples):
    inputs = torch.randn(
        num_samples, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )
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
        self.log(
            "number_at_end", float(len(batch[0])), on_step=False, on_epoch=True, reduce_fx="sum"
        )
        shown = self.trainer.callback_metrics
        self.steps.append([shown["loss_step"].item(), shown["least"].item()])

    def on_train_epoch_end(self):
        self.num_kept.append(sum(map(len, self.kept.value)))
        self.kept.reset()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def close(values):
    return pytest.approx(values, rel=0, abs=1e-12)


@pytest.mark.numbers
@pytest.mark.parametrize(
    ("num_samples", "batch_size", "window"), [(13, 6, 1), (15, 6, 1), (31, 6, 3), (7, 6, 3)]
)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_train_as_one_device_on_any_number_of_samples(
    num_samples, batch_size, window, num_ranks
):
    def train(num_ranks):
        strategy = DDPStrategy(forward_sync_buffers=False) if num_ranks > 1 else "auto"
        module = Net()
        trainer = Trainer(
            devices=num_ranks, accumulate_grad_batches=window, strategy=strategy, **QUIET
        )
        torch.manual_seed(1)
        trainer.fit(
            module, DataLoader(data(num_samples), batch_size=batch_size // num_ranks, shuffle=True)
        )
        logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
        return module, trainer.global_step, logged

    alone, num_steps, expected = train(1)
    ranks = in_one_process(train, num_ranks, ranks=num_ranks)
    for module, steps, logged in ranks:
        assert module.layer.weight.tolist() == [close(alone.layer.weight[0].tolist())]
        assert logged.pop("metric") == pytest.approx(expected["metric"], abs=1e-6)  # in float32
        assert logged == close({name: expected[name] for name in logged})
        assert module.steps == [close(values) for values in alone.steps]
        assert (steps, logged["num_samples"], logged["number_at_end"]) == (
            num_steps,
            num_samples,
            num_samples,
        )
    assert sum(module.num_seen for module, _, _ in ranks) == 2 * num_samples, "a buffer"
    for epoch in range(2):
        assert sum(module.num_kept[epoch] for module, _, _ in ranks) == num_samples, "a metric"


@pytest.mark.numbers
def test_an_odd_evaluation_counts_each_sample_once():
    """A rank without a sample stays with those that gather weights."""

    class Evaluated(Net):
        """Counts what it evaluates, in its step and in a hook."""

        def test_step(self, batch, batch_idx):
            self.metric.update(batch[0].sum(1))
            self.log("metric", self.metric)
            self.log("num_samples", float(len(batch[0])), reduce_fx="sum")
            self.log("loss", nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

        def predict_step(self, batch, batch_idx):
            return self.layer(batch[0])

        def on_test_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0):
            self.num_seen += len(batch[0])

    def evaluate(num_ranks, strategy):
        trainer = Trainer(devices=num_ranks, strategy=strategy, **QUIET)
        module, loader = Evaluated(), DataLoader(data(7))
        (metrics,) = trainer.test(module, loader)
        return (
            metrics,
            torch.cat(trainer.predict(module, loader)).flatten().tolist(),
            int(module.num_seen),
        )

    metrics, predicted, _ = evaluate(1, "auto")
    ranks = in_one_process(evaluate, 3, "fsdp", ranks=3)
    assert [found for found, _, _ in ranks] == [pytest.approx(metrics, abs=1e-6)] * 3  # in float32
    assert ranks[0][1] == close(predicted)
    assert sum(num_seen for _, _, num_seen in ranks) == 7


@pytest.mark.slow
def test_a_run_goes_on_after_a_step_that_one_stream_has_not_come_to(tmp_path):
    class Normed(Net):
        """Keeps statistics of what it sees, with the weight 0 too."""

        def on_train_batch_start(self, batch, batch_idx):
            self.norm(batch[0])

    class Stream(IterableDataset):
        """Four samples on rank 0, and twelve on rank 1."""

        def __iter__(self):
            samples = [*data(16)]
            return iter(samples[4:] if dist.get_rank() else samples[:4])

    def train_on_stream(ckpt_path=None, callbacks=()):
        module = Normed()
        module.norm = nn.BatchNorm1d(3, affine=False, dtype=torch.float64)
        options = {**QUIET, "max_epochs": 1, "callbacks": [*callbacks]}
        trainer = Trainer(devices=2, strategy="ddp", use_distributed_sampler=False, **options)
        trainer.fit(module, DataLoader(Stream(), batch_size=2), ckpt_path=ckpt_path)
        return [value.tolist() for value in module.state_dict().values()]

    def resume_streams(folder):
        """This rank's final state, and what runs end with that go on after each step."""

        def save(trainer, *_):
            trainer.save_checkpoint(folder / f"{trainer.global_step}.ckpt")

        whole = train_on_stream(callbacks=[LambdaCallback(on_train_batch_end=save)])
        return whole, [train_on_stream(folder / f"{step}.ckpt") for step in range(1, 6)]

    for whole, resumed in in_one_process(resume_streams, tmp_path):
        assert resumed == [whole] * 5
