"""Weights & Biases through a Trainer, offline."""

import os
import sys

from core_testing import programs
from support import logged_net


def test_wandb_is_chosen_by_alias(tmp_path):
    program = f"""
import sys
sys.path.append({os.path.dirname(logged_net.__file__)!r})
from logged_net import Net, ON_CPU, loader
from core import Trainer
trainer = Trainer(**ON_CPU, max_epochs=1, log_every_n_steps=2, default_root_dir=".", logger="wandb")
module = Net()
module.hparams = {{"lr": 0.1}}
trainer.fit(module, loader(), loader())
run = trainer.logger.experiment
summary = {{name: run.summary[name] for name in ("batch_idx", "val", "trainer/global_step")}}
print(summary, run.config["lr"], run.offline)
"""
    settings = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    done = programs.run([sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, **settings}, timeout=120)
    assert done.stdout.strip() == "{'batch_idx': 3, 'val': 2, 'trainer/global_step': 4} 0.1 True", done.stderr
