"""Trains on devices of XLA in this process, and tells what happened. Started by
test_one_process.py.

python one_process_program.py '{"strategy": "xla_spmd", "devices": 4}' FOLDER
"""

import json
import sys
from itertools import pairwise
from pathlib import Path

import torch
import torchmetrics
from lessons import QUIET, Net, furthest, make_data, refusal, train
from torch.utils.data import DataLoader

from core import Callback, ConfigurationError, Fabric, Trainer
from core.callbacks import ModelCheckpoint
from core.loggers import CSVLogger


class Counting(Callback):
    """Notes after each step how often XLA has compiled so far, and how often the host has waited
    for a value.
    """

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
    told, counting, each_step = {}, Counting(), Counting()
    module, _, losses = train(callbacks=[counting], gradient_clip_val=0.5, **options)
    told["last_steps"], told["is_tied"] = (
        counting.last_steps,
        module.first.weight is module.last.weight,
    )
    train(callbacks=[each_step], logger=CSVLogger(folder / "logs"), log_every_n_steps=1, **options)
    told["last_logged_steps"] = each_step.last_steps
    told["summed"] = sums_of_epochs(folder / "summed", options)
    told["graphs_by_hand"] = graphs_of_a_cut(options)
    told["16-mixed"] = refusal(ConfigurationError, lambda: Fabric(precision="16-mixed", **options))
    # On the CPU last: torch counts its kinds of device at the first backward of a process.
    told["furthest"] = furthest(
        losses, train(gradient_clip_val=0.5, accelerator="cpu", devices=1)[2]
    )
    print(json.dumps(told))


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
    shown = {**QUIET, "enable_checkpointing": True}
    trainer = Trainer(max_epochs=3, callbacks=[ModelCheckpoint(folder)], **shown, **options)
    trainer.fit(module, DataLoader(make_data(), batch_size=16))
    return [module.counted, float(trainer.callback_metrics["num_batches"])]


def graphs_of_a_cut(options):
    """The number of graphs that `mark_step` sends off for what was noted before, and then for
    nothing.
    """
    import torch_xla.core.xla_model as library
    from torch_xla.debug import metrics

    fabric, counts = Fabric(**options), []
    fabric.launch()
    noted = torch.ones(4, device=fabric.device) * 3
    for _ in range(3):
        # Several devices have a counter of their own.
        counts.append(
            sum(
                metrics.counter_value(f"Execute{what}") or 0
                for what in ("Computation", "Replicated")
            )
        )
        fabric.strategy.mark_step()
        library.wait_device_ops()
    fabric.teardown()
    assert noted.tolist() == [3.0] * 4
    return [after - before for before, after in pairwise(counts)]


if __name__ == "__main__":
    main()
