"""Trains on devices of XLA in this process, and tells what happened. Started by test_one_process.py.

python one_process_program.py '{"strategy": "xla_spmd", "devices": 4}' FOLDER
"""

import json
import sys
from itertools import pairwise
from pathlib import Path

import torch
import torchmetrics
from lessons import Net, Saving, furthest, make_data, train
from torch.utils.data import DataLoader

from core import Callback, ConfigurationError, Fabric, Trainer
from core.callbacks import ModelCheckpoint
from core.checkpoint import load_checkpoint
from core.loggers import CSVLogger


class Counting(Callback):
    """Notes after each step how often XLA has compiled so far, and how often the host has waited for a value."""

    def __init__(self):
        self.counts = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        from torch_xla.debug import metrics

        timed = [metrics.metric_data(name) for name in ("CompileTime", "TransferFromDeviceTime")]
        waits = metrics.counter_value("aten::_local_scalar_dense") or 0
        self.counts.append([*(data[0] if data else 0 for data in timed), waits])

    @property
    def last_steps(self):
        """Growth over the last six steps of an epoch of ten."""
        return [last - before for last, before in zip(self.counts[9], self.counts[3], strict=True)]


def main():
    options, folder = {"accelerator": "xla", **json.loads(sys.argv[1])}, Path(sys.argv[2])
    told = {}
    counting, saving = Counting(), Saving(folder / "xla", at=12)
    module, trainer, losses = train(callbacks=[counting, saving], gradient_clip_val=0.5, **options)
    told["last_steps"], told["strategy"] = counting.last_steps, type(trainer.strategy).__name__
    each_step = Counting()
    train(callbacks=[each_step], logger=CSVLogger(folder / "logs"), log_every_n_steps=1, **options)
    told["last_logged_steps"] = each_step.last_steps
    told["is_tied"] = module.first.weight is module.last.weight
    told["device"] = str(module.first.weight.device)
    told["validated"] = float(trainer.callback_metrics["validated"])
    told["uneven"] = train(num_samples=70, **options)[2]
    told["accumulated"] = train(accumulate_grad_batches=2, **options)[2]
    told["manual_loop"] = train_by_hand(options)
    told["summed"] = sums_of_epochs(folder / "summed", options)
    told["graphs_by_hand"] = graphs_of_a_cut(options)
    told["double"] = train(precision="64-true", **options)[2]
    for precision in ("bf16-true", "bf16-mixed"):
        told[precision] = train(precision=precision, **options)[2][-1]
    try:
        Fabric(precision="16-mixed", **options)
    except ConfigurationError as error:
        told["16-mixed"] = str(error)

    # On the CPU last: torch counts its kinds of device at the first backward of a process.
    one = {"accelerator": "cpu", "devices": 1}
    _, cpu_trainer, expected = train(callbacks=[Saving(folder / "cpu", at=12)], gradient_clip_val=0.5, **one)
    told["furthest"] = furthest(losses, expected)
    told["validated_on_one"] = float(cpu_trainer.callback_metrics["validated"])
    told["uneven"] = furthest(told["uneven"], train(num_samples=70, **one)[2])
    told["accumulated"] = furthest(told["accumulated"], train(accumulate_grad_batches=2, **one)[2])
    told["manual_loop"] = furthest(told["manual_loop"], train_by_hand(one))
    told["double"] = furthest(told["double"], train(precision="64-true", **one)[2])
    told["precise"] = train(**one)[2][-1]
    resumed = train(ckpt_path=folder / "xla", gradient_clip_val=0.5, **one)[2]
    told["resumed_on_cpu"] = furthest(resumed, expected[12:])
    resumed = train(ckpt_path=folder / "cpu", gradient_clip_val=0.5, **options)[2]
    told["resumed_on_xla"] = furthest(resumed, expected[12:])
    saved, plain = (load_checkpoint(folder / name) for name in ("xla", "cpu"))
    told["same_names"] = list(saved["model"]) == list(plain["model"]) and all(
        value.device.type == "cpu" for value in saved["model"].values()
    )
    print(json.dumps(told))


def train_by_hand(options):
    fabric = Fabric(**options)
    module = Net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)  # made before: set-up keeps the parameters
    model, optimizer = fabric.setup(module, optimizer)
    losses = []
    for inputs, targets in fabric.setup_dataloaders(DataLoader(make_data(), batch_size=16)):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    fabric.teardown()
    return [float(loss) for loss in losses]


class Summing(Net):
    """Counts its batches of an epoch by a metric, and notes what each epoch gave."""

    def __init__(self):
        super().__init__()
        self.num_batches, self.counted = torchmetrics.SumMetric(), []

    def training_step(self, batch, batch_idx):
        self.num_batches.update(torch.ones((), device=self.device))
        self.log("num_batches", self.num_batches, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self):
        self.counted.append(float(self.num_batches.compute()))


def sums_of_epochs(folder, options):
    """By a metric of one number, which is saved at the end of each of three epochs."""
    module = Summing()
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(max_epochs=3, callbacks=[ModelCheckpoint(folder)], **quiet, **options)
    trainer.fit(module, DataLoader(make_data(), batch_size=16))
    return [module.counted, float(trainer.callback_metrics["num_batches"])]


def graphs_of_a_cut(options):
    """The number of graphs that `mark_step` sends off for what was noted before, and then for nothing."""
    import torch_xla.core.xla_model as library
    from torch_xla.debug import metrics

    fabric, counts = Fabric(**options), []
    fabric.launch()
    noted = torch.ones(4, device=fabric.device) * 3
    for _ in range(3):
        # Several devices have a counter of their own.
        counts.append(sum(metrics.counter_value(f"Execute{what}") or 0 for what in ("Computation", "Replicated")))
        fabric.strategy.mark_step()
        library.wait_device_ops()
    fabric.teardown()
    assert noted.tolist() == [3.0] * 4
    return [after - before for before, after in pairwise(counts)]


if __name__ == "__main__":
    main()
