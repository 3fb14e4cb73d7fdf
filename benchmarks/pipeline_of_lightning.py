"""A published Lightning program as a pipeline: `pipeline()` is added to its module, and nothing else is changed.

    git clone https://github.com/Lightning-AI/pytorch-lightning lightning
    python benchmarks/pipeline_of_lightning.py --checkout lightning

The program is Lightning's image classifier, `backbone_image_classifier.py`, by `core run --lightning`: fit, test and
predict on one device and on two ranks. Printed is the largest difference of a weight in the checkpoints of both. MNIST
is random pixels. Needs torchvision, as the program does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from programs_for_lightning import make_data

PROGRAM = "pytorch/basics/backbone_image_classifier.py"
BEFORE = "    def training_step(self, batch, batch_idx):\n"
ADDED = """    def pipeline(self):
        def flatten(x):
            return x.view(x.size(0), -1)

        return [flatten, self.backbone.l1, torch.relu, self.backbone.l2, torch.relu]

"""
LIMITS = [f"--trainer.limit_{stage}_batches=20" for stage in ("train", "val", "test", "predict")]
HOW = {"one device": ["--trainer.devices=1"], "pipeline=2": ["--trainer.strategy=pipeline", "--trainer.devices=2"]}


def run(program: Path, words: list[str]) -> dict[str, torch.Tensor]:
    """The weights of the checkpoint that a run has written."""
    command = [sys.executable, "-m", "core", "run", "--lightning", program.name, "--trainer.max_epochs=1"]
    environment = {**os.environ, "PL_USE_MOCKED_MNIST": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, "--trainer.accelerator=cpu", *LIMITS, *words],
        cwd=program.parent,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    newest = max(program.parent.rglob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    weights: dict[str, torch.Tensor] = torch.load(newest, weights_only=False)["state_dict"]
    return weights


def main() -> None:
    """Run both, and print the difference."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkout", type=Path, required=True)
    source = (parser.parse_args().checkout / "examples" / PROGRAM).read_text(encoding="utf-8")
    assert source.count(BEFORE) == 1, "the program is another one by now"
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "examples" / "group" / "program"
        folder.mkdir(parents=True)
        make_data(folder)
        program = folder / Path(PROGRAM).name
        program.write_text(source.replace(BEFORE, ADDED + BEFORE), encoding="utf-8")
        of_one, of_two = (run(program, words) for words in HOW.values())
    worst = max(float((of_one[name] - of_two[name]).abs().max()) for name in of_one)
    print(f"{len(of_one)} tensors in float32, largest difference {worst:.1e}")


if __name__ == "__main__":
    main()
