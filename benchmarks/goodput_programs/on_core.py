"""The program of goodput.py on core.

core run --devices 2 --max-restarts 3 on_core.py FOLDER/plan.json
core go-on --devices 2 --spares 1 --max-losses 3 on_core.py FOLDER/plan.json
"""

import sys
from datetime import timedelta

import torch
from faulty import (
    BATCH_SIZE,
    GLOBAL_BATCH_SIZE,
    Plan,
    Record,
    Samples,
    loss_of,
    network,
    write_result,
)
from torch.utils.data import DataLoader

from core import Callback, Module, Trainer, WatchdogOptions, seed_everything
from core.callbacks import MemoryCheckpoint, ModelCheckpoint, SpikeGuard
from core_resilience import microbatch_size


class Net(Module):
    def __init__(self, plan):
        super().__init__()
        self.plan, self.layers = plan, network()

    def training_step(self, batch):
        return loss_of(
            self.layers, batch, self.plan, self.trainer.global_step, self.trainer.global_rank
        )

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Recorder(Callback):
    def __init__(self, plan):
        self.plan = plan

    def on_train_start(self, trainer, module):
        self.record, self.step = Record(self.plan, trainer.global_rank), trainer.global_step
        self.record.begin(self.step)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.record.take(batch)
        if trainer.running_step.ends_window:
            self.record.end_window(
                trainer.global_step, module, is_made=trainer.global_step > self.step
            )
            self.step = trainer.global_step


def main():
    plan = Plan.read(sys.argv[1])
    seed_everything(0)
    callbacks = [
        Recorder(plan),
        ModelCheckpoint(plan.folder / "saved", every_n_train_steps=plan.save_every),
    ]
    if plan.is_on_page:
        callbacks += [MemoryCheckpoint(), SpikeGuard()]
        options, size = {"global_batch_size": GLOBAL_BATCH_SIZE}, microbatch_size(BATCH_SIZE)
    else:
        options, size = {}, BATCH_SIZE
    hang = timedelta(seconds=plan.hang_s)
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        max_epochs=1,
        callbacks=callbacks,
        watch=WatchdogOptions(limit=hang / 2, end_after=hang, grace=timedelta(seconds=5)),
        default_root_dir=plan.folder,
        **dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False),
        **options,
    )
    net = Net(plan)
    trainer.fit(net, DataLoader(Samples(plan), batch_size=size), ckpt_path="last")
    if trainer.is_global_zero:
        write_result(plan, trainer.global_step, net)


main()
