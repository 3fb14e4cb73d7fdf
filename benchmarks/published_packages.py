"""Published packages' own examples, unchanged, on Lightning and on core-lightning, and what they
end with on each.

    python -m pip install lightning chemprop pytorch-forecasting mlcolvar ipython nbformat
    python benchmarks/published_packages.py chemprop
    python benchmarks/published_packages.py mlcolvar --checkout path/to/a/checkout/of/mlcolvar

neuralforecast and pytorch-tabular need environments of their own. An example comes out of the
package's source distribution, which pip downloads, or out of a checkout: a script, or the program
in its README. It runs once by `python`, and once by `core run --lightning`, on one device, in a
folder of its own, with seeds set before its first line. After each call of a Trainer that ends, all
weights, metrics and predictions are compared, bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

STAGES = ("fit", "validate", "test", "predict")


@dataclass(frozen=True)
class Example:
    """One example: the project, and commands after `python` or `core run`, run where its files have
    been put.
    """

    project: str
    commands: tuple[str, ...]
    folder: str = "."
    """The working folder, within the source distribution."""
    environment: tuple[tuple[str, str], ...] = ()
    prelude: str = "--lightning"
    """The option of `core run`."""
    readme_begins: str = ""
    """The first line of the program in README.md, which becomes readme.py."""


EXAMPLES = {
    "chemprop": Example(
        "chemprop",
        (
            # Without a seed chemprop takes one at random.
            "chemprop train --data-path tests/data/regression.csv --task-type regression "
            "--output-dir trained --pytorch-seed 0",
            "chemprop predict --test-path tests/data/regression.csv --model-path "
            "trained/model_0/best.pt --preds-path predictions.csv",
        ),
        # Checkpoints hold objects, which each of the two unpickles where its loader allows that
        # only.
        environment=(("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1"),),
        prelude="--lightning-trusted",
    ),
    "pytorch-forecasting": Example("pytorch-forecasting", ("nbeats.py",), "examples"),
    "neuralforecast": Example(
        "neuralforecast", ("readme.py",), readme_begins="from neuralforecast import NeuralForecast"
    ),
    "pytorch-tabular": Example(
        "pytorch-tabular", ("-m IPython '16-Model Stacking.ipynb'",), "docs/tutorials"
    ),
    "mlcolvar": Example(
        "mlcolvar", ("-m IPython intro_1_training.ipynb",), "docs/notebooks/tutorials"
    ),
}


# What an example's own process does before it, and after each call of a Trainer.


def observe(out: Path, arguments: list[str]) -> None:
    """Run a script or a module with seeds, and note what each call of a Trainer has ended with."""
    for trainer in _trainers():
        for stage in STAGES:
            setattr(trainer, stage, _noting(getattr(trainer, stage), stage, out))
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    is_module = arguments[0] == "-m"
    sys.argv = arguments[is_module:]
    if not is_module and not Path(sys.argv[0]).is_file():
        sys.argv[0] = shutil.which(sys.argv[0]) or sys.argv[0]  # a command that the package brings
    sys.path[0] = "" if is_module else str(Path(sys.argv[0]).parent)
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def _trainers() -> set[Any]:
    """The classes behind Lightning's two names: a single one on core."""
    return {
        import_module(name).Trainer
        for name in ("lightning.pytorch", "pytorch_lightning")
        if find_spec(name)
    }


def _noting(method: Any, stage: str, out: Path) -> Any:
    @wraps(method)
    def noting(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(trainer, *args, **kwargs)
        module = trainer.lightning_module
        note = {
            "stage": stage,
            "epoch": trainer.current_epoch,
            "steps": trainer.global_step,
            "weights": sum(
                float(weight.detach().double().abs().sum()) for weight in module.parameters()
            ),
            "digest": _digest(module.state_dict()),
            "result": _digest(result),
            "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        }
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(note) + "\n")
        return result

    return noting


def _digest(values: Any) -> str:
    """Of all tensors and numbers in nested collections."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(
                str((value.dtype, tuple(value.shape))).encode()
                + value.detach().cpu().numpy().tobytes()
            )
        elif isinstance(value, dict):
            for name in sorted(value, key=str):
                digest.update(str(name).encode())
                add(value[name])
        elif isinstance(value, list | tuple):
            for item in value:
                add(item)
        else:
            digest.update(repr(value).encode())

    add(values)
    return digest.hexdigest()[:12]


# Both runs of an example.


def run(
    example: Example, source: Path, on_core: bool, work: Path
) -> tuple[list[dict[str, Any]], float]:
    """Run its commands, in a copy of its files; what was noted, and the seconds it took."""
    work.mkdir(parents=True)
    subprocess.run(["cp", "-r", f"{source}/.", str(work)], check=True)
    folder, out = work / example.folder, work / "noted.jsonl"
    out.touch()
    if example.readme_begins:
        blocks = re.findall(
            "```python\n(.*?)```", (work / "README.md").read_text(encoding="utf-8"), re.DOTALL
        )
        program = next(block for block in blocks if block.startswith(example.readme_begins))
        (folder / "readme.py").write_text(program, encoding="utf-8")
    launcher = ["core", "run", "--devices", "1", example.prelude] if on_core else [sys.executable]
    own = [str(Path(__file__).resolve()), "--observe", str(out)]
    environment = {
        **os.environ,
        **dict(example.environment),
        "HOME": str(work),
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
    }
    began = time.monotonic()
    for command in example.commands:
        log = work / "output.txt"
        with log.open("ab") as file:
            done = subprocess.run(
                [*launcher, *own, "--", *shlex.split(command)],
                cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
        if done.returncode:  # what it had noted until then is compared
            print(f"  {command} ended with {done.returncode}:\n{log.read_text()[-2000:]}")
            break
    return [json.loads(line) for line in out.read_text().splitlines()], time.monotonic() - began


def compare(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    """Print where they differ, by how much, and a sum of both."""
    if [note["stage"] for note in first] != [note["stage"] for note in second]:
        print(
            f"  calls differ: {[note['stage'] for note in first]}, "
            f"{[note['stage'] for note in second]}"
        )
        return
    pairs = list(zip(first, second, strict=True))
    same = {
        what: sum(one[what] == other[what] for one, other in pairs)
        for what in ("digest", "result", "epoch", "steps", "weights")
    }
    print(
        f"  {len(pairs)} calls; equal: "
        + ", ".join(f"{what} in {count}" for what, count in same.items())
    )
    differing: dict[str, float] = {}
    missing = set()
    names = 0
    for one, other in pairs:
        missing |= one["metrics"].keys() ^ other["metrics"].keys()
        for name in one["metrics"].keys() & other["metrics"].keys():
            names += 1
            ours, theirs = other["metrics"][name], one["metrics"][name]
            if ours != theirs and not (ours != ours and theirs != theirs):
                differing[name] = max(
                    differing.get(name, 0.0), abs(ours - theirs) / max(abs(theirs), 1e-12)
                )
    print(
        f"  {names} metrics; relative differences: {differing or 'none'}; on one only: "
        f"{sorted(missing) or 'none'}"
    )
    for one, other in (pairs[0], pairs[-1]):
        print(f"  {one['stage']}: Lightning {_line(one)}")
        print(f"  {other['stage']}: core      {_line(other)}")


def _line(note: dict[str, Any]) -> str:
    metrics = {name: note["metrics"][name] for name in sorted(note["metrics"])[:6]}
    return (
        f"weights {note['weights']!r} after {note['epoch']} epochs, {note['steps']} steps; "
        f"{metrics}"
    )


def unpacked(example: Example, checkout: Path | None, into: Path) -> Path:
    """The folder with the example's files."""
    if checkout is not None:
        return checkout
    wanted = f"{example.project}=={version(example.project)}"
    options = (
        "--quiet",
        "--no-deps",
        "--no-binary",
        ":all:",
        "--no-build-isolation",
        "--dest",
        str(into),
    )
    subprocess.run([sys.executable, "-m", "pip", "download", *options, wanted], check=True)
    (archive,) = into.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(into, filter="data")
    archive.unlink()
    (folder,) = into.iterdir()
    return folder


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="PACKAGE", help=f"of {', '.join(EXAMPLES)}")
    parser.add_argument(
        "--checkout", type=Path, help="in place of the source distribution; for one package"
    )
    parser.add_argument("--work", type=Path, help="a new folder that is kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = (options.work or Path(scratch)).resolve()
        for name in options.names:
            example = EXAMPLES[name]
            print(f"{name} {version(example.project)}: {' && '.join(example.commands)}")
            source = unpacked(example, options.checkout, work / name / "source")
            noted, seconds = zip(
                *(
                    run(example, source, on_core, work / name / f"core_{on_core}")
                    for on_core in (False, True)
                ),
                strict=True,
            )
            print(f"  seconds: Lightning {seconds[0]:.0f}, core {seconds[1]:.0f}")
            compare(*noted)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--observe"]:
        split = sys.argv.index("--")
        observe(Path(sys.argv[2]), sys.argv[split + 1 :])
    else:
        main()
