"""Published Lightning programs as pipelines: `pipeline()` is added to their module, and nothing
else is changed.

    git clone https://github.com/Lightning-AI/pytorch-lightning lightning
    python benchmarks/pipeline_of_lightning.py --checkout lightning

The programs are two of Lightning's examples, on one device and on two ranks, by
`core run --lightning`. Printed is the largest difference of a number in the checkpoints of both.
MNIST and ImageNet are scikit-learn's digits, written where the programs look for theirs. Needs
torchvision and scikit-learn.
"""

from __future__ import annotations

import argparse
import os
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

BEFORE = "    def training_step(self, batch, batch_idx):\n"
CLASSIFIER = """    def pipeline(self):
        def flatten(x):
            return x.view(x.size(0), -1)

        return [flatten, self.backbone.l1, torch.relu, self.backbone.l2, torch.relu]

"""
RESNET = """    def pipeline(self):
        net = self.model
        blocks = [*net.layer1, *net.layer2, *net.layer3, *net.layer4]
        return [net.conv1, net.bn1, net.relu, net.maxpool, *blocks, net.avgpool, lambda x: x.flatten(1), net.fc]

"""
STRATEGY = (
    "--trainer.strategy=core_parallel.MeshParallelStrategy --trainer.strategy.pipeline=2 "
    "--trainer.devices=2"
)
SCHEDULE = f"{STRATEGY} --trainer.strategy.schedule=1F1B"
COMMON = "--trainer.max_epochs=1 --trainer.accelerator=cpu --trainer.precision=64-true"
LIMITS = "--trainer.limit_train_batches=20 --trainer.limit_val_batches=4"
OTHERS = "--trainer.limit_test_batches=4 --trainer.limit_predict_batches=4"
IMAGENET = (
    "fit --model.data_path=imagenet --model.workers=0 --model.lr=0.01 "
    "--trainer.use_distributed_sampler=true"
)


@dataclass(frozen=True)
class Program:
    """A program: its file, what is added to its module, its words on one device, and those as a
    pipeline, by name.
    """

    path: str
    added: str
    one_device: str
    pipelines: dict[str, str]


PROGRAMS = {
    "image classifier on MNIST, of fit, test and predict": Program(
        "basics/backbone_image_classifier.py",
        CLASSIFIER,
        OTHERS,
        {"pipeline=2": f"{OTHERS} {STRATEGY}", "1F1B": f"{OTHERS} {SCHEDULE}"},
    ),
    "torchvision's ResNet-18 on ImageNet": Program(
        "domain_templates/imagenet.py",
        RESNET,
        f"{IMAGENET} --model.batch_size=8",
        # The program divides its batch by the number of processes.
        {"pipeline=2": f"{IMAGENET} --model.batch_size=16 {STRATEGY}"},
    ),
}


def write_digits(work: Path) -> None:
    """Write digits as MNIST's files and as ImageNet's folders, where the programs look for them."""
    digits = load_digits()
    small = torch.tensor(digits.images / 16 * 255)
    images = F.interpolate(small[:, None], size=28, mode="bilinear").round().to(torch.uint8)[:, 0]
    classes = torch.tensor(digits.target, dtype=torch.uint8)
    for root in (work.parents[1] / "Datasets", work / "data"):
        (raw := root / "MNIST" / "raw").mkdir(parents=True)
        for name, number in (("train", 60000), ("t10k", 10000)):
            chosen = torch.arange(number) % len(images)
            _write_idx(raw / f"{name}-images-idx3-ubyte", images[chosen])
            _write_idx(raw / f"{name}-labels-idx1-ubyte", classes[chosen])
    for index in range(240):
        folder = work / "imagenet" / ("train" if index < 200 else "val") / str(digits.target[index])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[index].numpy()).convert("RGB").save(folder / f"{index}.png")


def _write_idx(path: Path, values: Tensor) -> None:
    head = struct.pack(">HBB", 0, 8, values.dim()) + struct.pack(f">{values.dim()}I", *values.shape)
    path.write_bytes(head + values.numpy().tobytes())


def run(program: Path, words: str) -> dict[str, Tensor]:
    """The weights and statistics in the checkpoint that a run has written."""
    command = [
        sys.executable,
        "-m",
        "core",
        "run",
        "--lightning",
        program.name,
        *words.split(),
        *COMMON.split(),
        *LIMITS.split(),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = program.with_suffix(".log")
    with log.open("w") as output:
        done = subprocess.run(
            command,
            cwd=program.parent,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise SystemExit(log.read_text()[-3000:])
    newest = max(program.parent.rglob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    state: dict[str, Tensor] = torch.load(newest, weights_only=False)["state_dict"]
    return state


def main() -> None:
    """Run all, and print the differences."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkout", type=Path, required=True)
    examples = parser.parse_args().checkout / "examples" / "pytorch"
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "examples" / "group" / "program"
        folder.mkdir(parents=True)
        write_digits(folder)
        for title, described in PROGRAMS.items():
            source = (examples / described.path).read_text(encoding="utf-8")
            assert source.count(BEFORE) == 1, "the program is another one by now"
            program = folder / Path(described.path).name
            program.write_text(source.replace(BEFORE, described.added + BEFORE), encoding="utf-8")
            expected = run(program, described.one_device)
            for name, words in described.pipelines.items():
                found = run(program, words)
                assert found.keys() == expected.keys()
                worst = max(float((found[key] - expected[key]).abs().max()) for key in expected)
                print(
                    f"{title}, {name}: {len(expected)} tensors, largest difference {worst:.1e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
