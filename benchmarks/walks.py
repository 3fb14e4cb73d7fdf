"""Files and calls of core's own code that four things take: a start, a step, a save and a load.

    python benchmarks/walks.py                     # this checkout
    python benchmarks/walks.py --beside OTHER      # another checkout too, in the same environment

Counts move with Python and torch, so a comparison is of two checkouts in one run. A move is a call
from one file into another; a return is a move back into a file that the walk has been in.
"""

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class Walk:
    """Counts what of core runs while it is open, in this thread."""

    def __init__(self) -> None:
        self.calls, self.moves, self.returns, self._files = 0, 0, 0, {}
        self._last = ""

    def __enter__(self) -> "Walk":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame, event, arg) -> None:
        if event != "call" or frame.f_globals.get("__name__", "").partition(".")[0] not in (
            "core",
            "core_ddp",
        ):
            return
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return  # the body of a module or a class: an import
        self.calls += 1
        file = frame.f_code.co_filename
        if file != self._last:
            self.moves += 1
            self.returns += file in self._files
        self._last = file
        self._files[file] = self._files.get(file, 0) + 1

    def figures(self) -> dict[str, int]:
        return {
            "files": len(self._files),
            "calls": self.calls,
            "moves": self.moves,
            "returns": self.returns,
        }


def measure() -> dict[str, dict[str, int]]:
    """All walks, in this process: rank 0 of one, with what it imports imported before."""
    import torch

    from core import Fabric, Module, Trainer

    class Net(Module):
        def __init__(self, layers: int = 1) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(layers))

        def training_step(self, batch):
            return self.layers[0](batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "0",
    }
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "TORCHELASTIC_RUN_ID": "walks"}
    off = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary", "watch"),
        False,
    )
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(64, 1)))
    found = {}

    def start() -> Trainer:
        trainer = Trainer(accelerator="cpu", strategy="ddp", devices=1, max_steps=1, **off)
        trainer.strategy.check()
        return trainer

    with Walk() as walk:
        start()
    found["Trainer(strategy='ddp')"] = walk.figures()

    for name in (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    ):
        del os.environ[name]
    del os.environ["TORCHELASTIC_RUN_ID"]

    def fit(steps: int) -> int:
        trainer = Trainer(accelerator="cpu", max_steps=steps, **off)
        with Walk() as walk:
            trainer.fit(Net(), data)
        return walk

    fit(1)
    short, long = fit(10), fit(20)
    found["a step"] = {"calls": round((long.calls - short.calls) / 10)}

    with tempfile.TemporaryDirectory() as folder:
        for layers in (1, 100):
            fabric = Fabric(accelerator="cpu")
            net = Net(layers)
            model, optimizer = fabric.setup(net, net.configure_optimizers())
            sum(layer(torch.ones(1, 1)).sum() for layer in model.layers).backward()
            optimizer.step()
            state = {"model": model, "optimizer": optimizer}
            fabric.save(f"{folder}/warm-{layers}", state)
            fabric.load(f"{folder}/warm-{layers}", state)
            with Walk() as walk:
                fabric.save(f"{folder}/{layers}", state)
            found[f"a save, {2 * layers} parameters"] = walk.figures()
            with Walk() as walk:
                fabric.load(f"{folder}/{layers}", state)
            found[f"a load, {2 * layers} parameters"] = walk.figures()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", type=Path, help="the root of another checkout")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measure()))
        return
    for root in filter(None, (args.beside, ROOT)):
        path = os.pathsep.join(map(str, (root, root / "plugins/ddp")))
        command = [sys.executable, "-W", "ignore", __file__, "--worker"]
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, check=True
        )
        print(f"{root}")
        for name, figures in json.loads(done.stdout.splitlines()[-1]).items():
            print(
                f"  {name:28}" + "  ".join(f"{value:6,} {what}" for what, value in figures.items())
            )


if __name__ == "__main__":
    main()
