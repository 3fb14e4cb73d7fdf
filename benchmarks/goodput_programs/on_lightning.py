"""The program of goodput.py on Lightning.

torchrun --nproc-per-node 2 --max-restarts 3 on_lightning.py FOLDER/plan.json
"""

import os
import sys
from datetime import timedelta

import torch
from faulty import BATCH_SIZE, NUM_RANKS, Plan, Record, Samples, loss_of, network, write_result
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader


class Net(LightningModule):
    def __init__(self, plan):
        super().__init__()
        self.plan, self.layers = plan, network()

    def training_step(self, batch, batch_idx):
        return loss_of(
            self.layers, batch, self.plan, self.trainer.global_step, self.trainer.global_rank
        )

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Recorder(Callback):
    def __init__(self, plan):
        self.plan = plan

    def on_train_start(self, trainer, module):
        self.record = Record(self.plan, trainer.global_rank)
        self.record.begin(trainer.global_step)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.record.take(batch)
        self.record.end_window(trainer.global_step, module, is_made=True)


def main():
    plan = Plan.read(sys.argv[1])
    seed_everything(0)
    saves = ModelCheckpoint(
        plan.folder / "saved", every_n_train_steps=plan.save_every, save_last=True
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=NUM_RANKS,
        num_nodes=1,
        strategy=DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=plan.hang_s)),
        use_distributed_sampler=False,  # it would shuffle
        max_epochs=1,
        callbacks=[Recorder(plan), saves],
        default_root_dir=plan.folder,
        **dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False),
    )
    net = Net(plan)
    samples = Samples(plan)
    sampler = DistributedSampler(samples, NUM_RANKS, int(os.environ["RANK"]), shuffle=False)
    trainer.fit(
        net, StatefulDataLoader(samples, batch_size=BATCH_SIZE, sampler=sampler), ckpt_path="last"
    )
    if trainer.is_global_zero:
        write_result(plan, trainer.global_step, net)


main()
