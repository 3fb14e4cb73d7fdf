"""Programs for Lightning, unchanged, on Lightning and on core-lightning: their weights side by
side, as a table.

    git clone https://github.com/Lightning-AI/pytorch-lightning lightning
    python benchmarks/programs_for_lightning.py run --checkout lightning --into results.json
    python benchmarks/programs_for_lightning.py run on_gluonts --python gluonts-env/bin/python --into results.json
    python benchmarks/programs_for_lightning.py table results.json --write docs/lightning.md

The programs are Lightning's own examples that need no network, and those in
`programs_for_lightning/`, which call published packages on small data. MNIST is random pixels and
WikiText-2 is 400,000 words in turn, the same for both. Each program runs once by `python` and once
by `core run --lightning`, in a folder of its own, with seeds set before its first line. After each
call of a Trainer, and for Fabric at the program's end, all weights are compared, bit by bit.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from published_packages import _digest, observe

HERE = Path(__file__).resolve()
PACKAGES = HERE.with_suffix("")
BEGIN, END = "<!-- programs_for_lightning.py writes this table -->", "<!-- the table ends -->"
_CLI = (
    "--data.batch_size=32 --trainer.max_epochs=1 --trainer.limit_train_batches=2 "
    "--trainer.limit_val_batches=2 --trainer.limit_test_batches=2 "
    "--trainer.limit_predict_batches=2 --optimizer=Adam --trainer.accelerator=cpu"
)
"""As Lightning's own script that runs the examples has them."""


@dataclass(frozen=True)
class Program:
    """One of Lightning's examples: its folder, and the words after `python`."""

    folder: str
    command: str


EXAMPLES = {
    "bug_report_model": Program("pytorch/bug_report", "bug_report_model.py"),
    "autoencoder": Program("pytorch/basics", f"autoencoder.py {_CLI}"),
    "backbone_image_classifier": Program("pytorch/basics", f"backbone_image_classifier.py {_CLI}"),
    "transformer": Program("pytorch/basics", "transformer.py"),
    "profiler_example": Program(
        "pytorch/basics",
        "profiler_example.py predict --trainer.limit_predict_batches=2 --trainer.accelerator=cpu",
    ),
    "generative_adversarial_net": Program(
        "pytorch/domain_templates", "generative_adversarial_net.py"
    ),
    "reinforce_learn_Qnet": Program("pytorch/domain_templates", "reinforce_learn_Qnet.py"),
    "reinforce_learn_ppo": Program("pytorch/domain_templates", "reinforce_learn_ppo.py"),
    "computer_vision_fine_tuning": Program(
        "pytorch/domain_templates", "computer_vision_fine_tuning.py fit"
    ),
    "semantic_segmentation": Program(
        "pytorch/domain_templates", "semantic_segmentation.py --data_path kitti"
    ),
    "imagenet": Program("pytorch/domain_templates", "imagenet.py fit --model.data_path imagenet"),
    "servable_module": Program("pytorch/servable_module", "production.py"),
    "tensor_parallel": Program("pytorch/tensor_parallel", "train.py"),
    "fabric/image_classifier": Program("fabric/image_classifier", "train_fabric.py --epochs=1"),
    "fabric/kfold_cv": Program("fabric/kfold_cv", "train_fabric.py --epochs=1"),
    "fabric/build_your_own_trainer": Program("fabric/build_your_own_trainer", "run.py"),
    "fabric/language_model": Program("fabric/language_model", "train.py"),
    "fabric/dcgan": Program("fabric/dcgan", "train_fabric.py"),
    "fabric/meta_learning": Program("fabric/meta_learning", "train_fabric.py"),
    "fabric/reinforcement_learning": Program(
        "fabric/reinforcement_learning", "train_fabric.py --total-timesteps 512"
    ),
    "fabric/tensor_parallel": Program("fabric/tensor_parallel", "train.py"),
}


def note_fabric(out: Path) -> None:
    """Note at the process's end the weights of all modules that `Fabric.setup` was given."""
    fabric = import_module("lightning.fabric").Fabric
    given: list[Any] = []
    setup = fabric.setup

    def noting(self: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        given.append(module)
        return setup(self, module, *args, **kwargs)

    fabric.setup = noting

    def write() -> None:
        if given:
            states = [module.state_dict() for module in given]
            total = sum(
                float(value.double().abs().sum()) for state in states for value in state.values()
            )
            with out.open("a", encoding="utf-8") as file:
                file.write(
                    json.dumps({"stage": "fabric", "digest": _digest(states), "weights": total})
                    + "\n"
                )

    atexit.register(write)


def make_data(work: Path) -> None:
    """Write random digits where torchvision and Lightning's demo look for them, and a text."""
    draws = torch.Generator().manual_seed(0)
    for root in (
        *(above / "Datasets" for above in work.parents[1:3]),
        work / "data",
        work / "Datasets",
    ):
        (raw := root / "MNIST" / "raw").mkdir(parents=True, exist_ok=True)
        (whole := root / "MNIST" / "complete").mkdir(exist_ok=True)
        for name, file, number in (("train", "training.pt", 60000), ("t10k", "test.pt", 10000)):
            images = torch.randint(0, 256, (number, 28, 28), generator=draws, dtype=torch.uint8)
            classes = torch.randint(0, 10, (number,), generator=draws, dtype=torch.uint8)
            torch.save((images, classes.long()), whole / file)
            for kind, values in (("images-idx3", images[:2000]), ("labels-idx1", classes[:2000])):
                head = struct.pack(">HBB", 0, 8, values.dim()) + struct.pack(
                    f">{values.dim()}I", *values.shape
                )
                (raw / f"{name}-{kind}-ubyte").write_bytes(head + values.numpy().tobytes())
        words = " ".join(f"w{number % 997}" for number in range(400_000))
        (root / "wikitext-2.txt").write_text(words, encoding="utf-8")


def run(
    program: Path, command: str, python: str, on_core: bool, work: Path, limit_s: int
) -> dict[str, Any]:
    """Run a program in a copy of its folder; the status, the last line of its output, and what was
    noted.
    """
    folder = work / "examples" / "group" / "program"
    folder.mkdir(parents=True)
    subprocess.run(["cp", "-r", f"{program}/.", str(folder)], check=True)
    make_data(folder)
    out = work / "noted.jsonl"
    out.touch()
    launcher = [python, "-m", "core", "run", "--lightning"] if on_core else [python]
    environment = {
        **os.environ,
        "HOME": str(work),
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "PL_USE_MOCKED_MNIST": "1",
    }
    words = [*launcher, str(HERE), "--observe", str(out), "--", *shlex.split(command)]
    with (work / "output.txt").open("wb") as log:
        try:
            done = subprocess.run(
                words,
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            )
            status = done.returncode
        except subprocess.TimeoutExpired:
            status = 124
    said = (work / "output.txt").read_text(errors="replace").strip().splitlines() or [""]
    return {
        "status": status,
        "said": said[-1][:300],
        "notes": [json.loads(line) for line in out.open(encoding="utf-8")],
    }


def versions(python: str, names: list[str]) -> str:
    """The versions of installed distributions."""
    ask = (
        "import sys; from importlib.metadata import version as v; print(' '.join(f'{n} {v(n)}' "
        "for n in sys.argv[1:]))"
    )
    return subprocess.run(
        [python, "-c", ask, *names], capture_output=True, text=True, check=True
    ).stdout.strip()


# The table.


def row(name: str, found: dict[str, Any]) -> str:
    """One row: the program, how its weights compare, and why it doesn't run, if so."""
    sides = found["lightning"], found["core"]
    first, second = (side["notes"] for side in sides)
    if sides[0]["status"] and sides[1]["status"]:
        verdict = f"runs on neither: {_reason(sides[0])}"
    elif sides[1]["status"]:
        verdict = f"not on core: {_reason(sides[1])}"
    elif sides[0]["status"]:
        verdict = f"on core only; on Lightning: {_reason(sides[0])}"
    else:
        pairs = list(zip(first, second, strict=False))
        same = sum(one["digest"] == other["digest"] for one, other in pairs)
        if len(first) != len(second):
            verdict = f"other calls: {len(first)} and {len(second)}"
        elif same == len(pairs):
            verdict = f"equal, bit by bit, after {len(pairs)} call{'s' * (len(pairs) != 1)}"
        else:
            apart = max(
                abs(one["weights"] - other["weights"]) / max(abs(one["weights"]), 1e-12)
                for one, other in pairs
            )
            verdict = f"{same} of {len(pairs)} equal; sums of weights differ by {apart:.1e}"
    return f"| {found.get('label', name)} | {verdict} |"


def _reason(side: dict[str, Any]) -> str:
    if side["status"] == 124:
        return "time limit"
    text: str = re.sub(r"\x1b\[[0-9;]*m", "", side["said"]).replace("|", "/")
    return f"`{text[:150]}`"


def table(results: dict[str, Any]) -> str:
    """The rows of all programs that run on one side at least, and the names of the others."""
    ordered = sorted(results.items(), key=lambda item: (item[0].startswith("on_"), item[0]))
    neither = [
        name for name, found in ordered if found["lightning"]["status"] and found["core"]["status"]
    ]
    rows = [row(name, found) for name, found in ordered if name not in neither]
    if neither:
        rows += [
            "",
            f"On neither: {', '.join(results[name].get('label', name) for name in neither)}.",
        ]
    return "\n".join(["| program | weights |", "| --- | --- |", *rows])


def main() -> None:
    """Run programs, or write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument(
        "names", nargs="*", help="examples, or programs that begin with on_; for table the results"
    )
    parser.add_argument("--checkout", type=Path, help="of Lightning, for its examples")
    parser.add_argument(
        "--python", default=sys.executable, help="of an environment with core and the package"
    )
    parser.add_argument("--into", type=Path, default=Path("results.json"))
    parser.add_argument("--limit-s", type=int, default=300)
    parser.add_argument("--write", type=Path, help="the page that has the table")
    options = parser.parse_intermixed_args()
    if options.what == "table":
        text = table(json.loads(Path(options.names[0]).read_text(encoding="utf-8")))
        if options.write is None:
            print(text)
            return
        before, _, rest = options.write.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        options.write.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
        return
    for name in options.names or EXAMPLES:
        is_package = name.startswith("on_")
        with tempfile.TemporaryDirectory() as scratch:
            work = Path(scratch)
            if is_package:
                source = work / "source"
                source.mkdir()
                (source / "program.py").write_bytes((PACKAGES / f"{name}.py").read_bytes())
                command = "program.py"
                first = (PACKAGES / f"{name}.py").read_text(encoding="utf-8").partition("\n")[0]
                label = versions(options.python, first.removeprefix("# ").split()[:1])
            else:
                example = EXAMPLES[name]
                source, command, label = (
                    options.checkout / "examples" / example.folder,
                    example.command,
                    f"`{name}`",
                )
            found: dict[str, Any] = {
                side: run(
                    source, command, options.python, side == "core", work / side, options.limit_s
                )
                for side in ("lightning", "core")
            }
            found["label"] = label
        results = (
            json.loads(options.into.read_text(encoding="utf-8")) if options.into.exists() else {}
        )
        results[name] = found
        options.into.write_text(json.dumps(results, indent=1), encoding="utf-8")
        print(row(name, found), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--observe"]:
        split = sys.argv.index("--")
        note_fabric(Path(sys.argv[2]))
        observe(Path(sys.argv[2]), sys.argv[split + 1 :])
    else:
        main()
