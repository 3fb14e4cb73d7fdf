"""The file for SLURM of docs/several-nodes.md, smaller, on real daemons: to its limit of time, and
on.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from core_testing.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


def test_the_file_for_slurm_runs_to_its_limit_and_goes_on(slurm, tmp_path):
    guide = Path(__file__).parents[2] / "docs" / "several-nodes.md"

    def page_file():
        """The page's batch file, on two nodes that are this machine's, with a minute before it is
        warned.
        """
        page = guide.read_text(encoding="utf-8")
        (text,) = [
            each
            for each in re.findall(r"^```bash\n(.*?)^```$", page, re.M | re.S)
            if "#SBATCH" in each
        ]
        changes = {
            "--ntasks-per-node=8": "--ntasks-per-node=1",
            "--cpus-per-task=12": "--cpus-per-task=1",
            "#SBATCH --gpus-per-node=8\n": "",
            "--time=08:00:00": "--time=00:02:00",
            "--signal=USR1@120": "--signal=USR1@60",
            "python train.py": f"{shlex.quote(sys.executable)} train.py",
        }
        for old, new in changes.items():
            assert old in text, old
            text = text.replace(old, new)
        return text

    program = """
import json, os, time
from pathlib import Path

import torch
from core import Callback, Module, Trainer
from torch.utils.data import DataLoader


class Line(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Tells(Callback):
    def on_train_start(self, trainer, module):
        self.first = trainer.global_step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if not int(os.environ.get("SLURM_RESTART_COUNT", "0")):
            time.sleep(0.5)

    def teardown(self, trainer, module, stage):
        environment = trainer.strategy.cluster_environment
        told = [type(environment).__name__, environment.restart_count, trainer.num_nodes, trainer.world_size]
        steps = [self.first, trainer.global_step]
        Path(f"told-{environment.restart_count}-{trainer.global_rank}").write_text(json.dumps([told, steps]))


off = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
trainer = Trainer(
    accelerator="cpu", devices="auto", num_nodes="auto", strategy="ddp", max_steps=500, callbacks=Tells(), **off
)
trainer.fit(Line(), DataLoader(torch.ones(2000, 1)), ckpt_path="last")
"""
    # A minute, of which SLURM may take all for its signal; two, in which it lets a requeued job
    # wait; and a second run.
    limit_s = 600
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"} | slurm
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "line.sh").write_text(page_file())

    def call(*command):
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    job = call("sbatch", "--parsable", "line.sh").strip()
    log = tmp_path / f"line-{job}.log"

    def has_gone_on():
        about = call("scontrol", "show", "job", job) + (log.read_text() if log.exists() else "")
        assert "JobState=FAILED" not in about, about
        return len(list(tmp_path.glob("told-1-*"))) == 2

    wait_until(has_gone_on, "end of the second run", timeout_s=limit_s)
    told = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("told-*")}
    for rank in (0, 1):
        (first, (begin, stopped)), (second, (resumed, end)) = (
            told[f"told-0-{rank}"],
            told[f"told-1-{rank}"],
        )
        assert first == ["SLURMEnvironment", 0, 2, 2]
        assert second == ["SLURMEnvironment", 1, 2, 2]
        assert (begin, end) == (0, 500)
        assert 0 < stopped == resumed < 500
    assert not list(tmp_path.glob("requeue-*")), "the file of a run that has come to its end"
