"""By hand: published architectures in layouts of the mesh, beside one device; writes
docs/parallel/architectures.md.

    python benchmarks/architectures.py [part of an architecture's name ...] [--layout L ...] [-v]

Each cell trains 4 batches of 8 samples in float64, by SGD with momentum. It is right if losses and
weights differ from those of one device by at most 1e-12, or of ddp with as many shares where a
model has batch norms, whose statistics are of a share; refused if core says so before a step; else
wrong, a crash, or it stands still. Results are kept in architectures.json beside this file, and a
run replaces those of its cells.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import published_models
import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, CoreError, Trainer, WorkerError
from core.strategies import DDPStrategy
from core_parallel import MeshParallelStrategy
from core_testing.training import whole

LAYOUTS: dict[str, dict[str, Any]] = {
    "D2": {"data": 2},
    "S2": {"shard": 2},
    "T2": {"tensor": 2},
    "C2": {"context": 2},
    "C2g": {"context": 2, "context_attention": "gather"},
    "P2": {"pipeline": 2},
    "P2g": {"pipeline": 2, "schedule": "GPipe"},
    "P2f": {"pipeline": 2, "schedule": "1F1B"},
    "P2i": {"pipeline": 2, "schedule": "Interleaved1F1B"},
    "P2z": {"pipeline": 2, "schedule": "ZBVZeroBubble"},
    "D2S2": {"data": 2, "shard": 2},
    "D2T2": {"data": 2, "tensor": 2},
    "S2T2": {"shard": 2, "tensor": 2},
    "S2C2": {"shard": 2, "context": 2},
    "T2C2": {"tensor": 2, "context": 2},
    "P2fD2": {"pipeline": 2, "schedule": "1F1B", "data": 2},
    "P2fS2": {"pipeline": 2, "schedule": "1F1B", "shard": 2},
    "P2fT2": {"pipeline": 2, "schedule": "1F1B", "tensor": 2},
    "P2fC2": {"pipeline": 2, "schedule": "1F1B", "context": 2},
    "D2C2": {"data": 2, "context": 2},
}
TOLERANCE, LIMIT_S, BATCH, STEPS = 1e-12, 120, 8, 4
RECORD, PAGE = (
    Path(__file__).with_suffix(".json"),
    Path(__file__).parents[1] / "docs" / "parallel" / "architectures.md",
)
AXES = ("data", "shard", "tensor", "context", "pipeline")
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "enable_progress_bar": False,
    "max_epochs": 1,
    "max_steps": STEPS,
    "accelerator": "cpu",
    "precision": "64-true",
}


class Results(Callback):
    """Losses, averaged over shares, and at the end the whole weights, written by rank 0."""

    def __init__(self, path: Path) -> None:
        self.path, self.losses = path, []

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        self.losses.append(float(trainer.strategy.reduce(loss.detach().clone(), reduce_op="mean")))

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        state = trainer.strategy.get_module_state_dict(module)
        own = {name: whole(value, trainer.strategy) for name, value in state.items()}
        every: list[Any] = [None] * trainer.world_size
        if trainer.world_size == 1:
            every = [own]
        else:
            dist.all_gather_object(every, own)
        weights = {name: value for each in every[::-1] for name, value in each.items()}
        if trainer.is_global_zero:
            torch.save((self.losses, weights), self.path)


def _train(architecture: str, layout: dict[str, Any] | None, path: Path) -> None:
    published_models.in_float64()
    torch.manual_seed(0)
    learner = published_models.MODELS[architecture]()
    data = TensorDataset(*learner.draw())
    ranks = (layout or {}).get("ddp", 1)
    for axis in AXES:
        ranks *= (layout or {}).get(axis, 1)
    options: dict[str, Any] = {"devices": ranks, "callbacks": [Results(path)]}
    if layout is not None and "ddp" in layout:
        options["strategy"] = DDPStrategy(start_method="fork")
    elif layout is not None:
        given = {"data": 1, **layout}
        if "tensor" in layout:
            given["tensor_plan"] = published_models.PLANS.get(architecture)
        options["strategy"] = MeshParallelStrategy(start_method="fork", **given)
    trainer = Trainer(**QUIET, **options)
    trainer.fit(learner, DataLoader(data, BATCH // trainer.strategy.data_parallel_size))


def _quietly(architecture: str, layout: dict[str, Any] | None, path: Path) -> None:
    os.setsid()  # ranks and all, it ends as one
    with path.with_suffix(".log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        _train(architecture, layout, path)
    except BaseException as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        said = re.search(r"core\.\S*\.(Module|Configuration)Error: ", text)
        is_refused = isinstance(error, CoreError) and (
            not isinstance(error, WorkerError) or said is not None
        )
        path.with_suffix(".json").write_text(
            json.dumps(["refused" if is_refused else "crash", text])
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _result(architecture: str, layout: dict[str, Any] | None, path: Path) -> tuple[str, Any]:
    """Of a process of its own: `("right", losses and weights)`, or how it ended and a text."""
    if (child := os.fork()) == 0:  # not by multiprocessing, whose children launch no ranks
        _quietly(architecture, layout, path)
    end_s = time.monotonic() + LIMIT_S
    while not (is_over := os.waitpid(child, os.WNOHANG)[0] == child) and time.monotonic() < end_s:
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not is_over:
        os.waitpid(child, 0)
    if not is_over:
        return "stands still", f"no end after {LIMIT_S} s"
    if path.exists():
        return "right", torch.load(path)
    end = path.with_suffix(".json")
    if end.exists():
        state, text = json.loads(end.read_text())
        return state, text
    return "crash", path.with_suffix(".log").read_text()[-500:]


def _difference(one: Any, other: Any) -> float:
    (losses, weights), (theirs, their_weights) = one, other
    if len(losses) != len(theirs) or weights.keys() != their_weights.keys():
        return float("inf")
    found = [abs(a - b) for a, b in zip(losses, theirs, strict=True)]
    found += [
        float((a - their_weights[name]).abs().max()) for name, a in weights.items() if a.numel()
    ]
    return max(found) if all(value == value for value in found) else float("inf")


def cell(architecture: str, layout: dict[str, Any], expected: Any, folder: Path) -> dict[str, Any]:
    """The state of one, with the difference or the error's text."""
    state, found = _result(architecture, layout, folder / "cell")
    if state != "right":
        return {"state": state, "text": _without_rank(str(found))}
    difference = _difference(expected, found)
    return {"state": "right" if difference <= TOLERANCE else "wrong", "difference": difference}


def _without_rank(text: str) -> str:
    """An error of a rank by its cause, without what depends on the run."""
    cause = re.findall(r"^(?:core\.\S*?)?(\w+(?:Error|Exception): .*)", text, re.M)
    return re.sub(r"0x[0-9a-f]+|/\S*/", "", (cause or [text])[-1])[:400]


def row(name: str, layouts: list[str]) -> dict[str, dict[str, Any]]:
    """The cells of one architecture, by layout."""
    found: dict[str, dict[str, Any]] = {}
    expected: dict[int, Any] = {}
    has_shares = any(
        isinstance(part, BatchNorm) for part in published_models.MODELS[name]().modules()
    )
    for layout in layouts:
        shares = (
            LAYOUTS[layout].get("data", 1) * LAYOUTS[layout].get("shard", 1) if has_shares else 1
        )
        with tempfile.TemporaryDirectory() as folder:
            if shares not in expected:
                like = {"ddp": shares} if shares > 1 else None
                state, expected[shares] = _result(name, like, Path(folder) / "expected")
                if state != "right":
                    sys.exit(f"{name} fails on {shares} devices: {expected[shares]}")
            found[layout] = cell(name, LAYOUTS[layout], expected[shares], Path(folder))
        print(f"{name:22} {layout:6} {' '.join(map(str, found[layout].values()))}", flush=True)
    return found


# The page.

WORDS_OF_REFUSALS = {
    r"tensor_parallel_plan|tensor_plan": "no plan",
    r"says? what its parts|has no pipeline\(\)|parts=": "no parts",
    r"batch norm": "batch norm",
    r"tied|shares? .* parameter": "tied",
    r"expert": "no experts",
    r"isn't its parts": "parts",
    r"sequence|context": "sequence",
    r"heads": "heads",
}
HEAD = """\
# Published architectures

Each cell trained {steps} batches on CPUs, in float64, beside one device. A number is the largest difference of a loss
or a weight, at most 1e-12; a word is why core refuses it, before a step. Batch norms have the statistics of a rank's
share, and are compared with `ddp`. Under `tensor`, some models without a plan have the one that the refusal proposes. The models are
small; their steps are those that users write
([models](../../benchmarks/published_models.py),
[program](../../benchmarks/architectures.py), run by hand on {date} with torch {torch}).

Of {total} cells {right} are right and {refused} refused; {wrong} are wrong, {crash} crash, {still} stand still.{others}

"""


def _text(result: dict[str, Any]) -> str:
    if result["state"] == "right":
        return f"{result['difference']:.0e}" if result["difference"] else "0"
    if result["state"] == "refused":
        words = (
            word
            for pattern, word in WORDS_OF_REFUSALS.items()
            if re.search(pattern, result["text"])
        )
        return next(words, "refused")
    return f"**{result['state']}**"


def page(record: dict[str, Any]) -> str:
    """The table as Markdown, below its counts."""
    cells = record["cells"]
    states = [result["state"] for row in cells.values() for result in row.values()]
    counts = {
        name: states.count(state)
        for name, state in (("still", "stands still"), *((s, s) for s in set(states)))
    }
    missing = len(LAYOUTS) * len(published_models.MODELS) - len(states)
    others = f"\n{missing} weren't run, and are empty." if missing else ""
    head = HEAD.format_map(
        {
            "right": 0,
            "refused": 0,
            "wrong": 0,
            "crash": 0,
            "steps": STEPS,
            "total": len(states),
            "others": others,
            **record,
            **counts,
        }
    )
    lines = ["| | " + " | ".join(LAYOUTS) + " |", "| --- |" + " --- |" * len(LAYOUTS)]
    for name in published_models.MODELS:
        if name in cells:
            texts = [_text(cells[name][one]) if one in cells[name] else "" for one in LAYOUTS]
            lines.append(f"| {name} | {' | '.join(texts)} |")
    lines += ["", "| layout | options |", "| --- | --- |"]
    for name, one in LAYOUTS.items():
        lines.append(
            f"| {name} | {', '.join(f'`{key}={value!r}`' for key, value in one.items())} |"
        )
    return head + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--layout", nargs="*", default=[*LAYOUTS], choices=LAYOUTS)
    given = parser.parse_args()
    names = [
        name
        for name in published_models.MODELS
        if not given.names or any(part in name for part in given.names)
    ]
    torch.set_num_threads(1)
    for library in ("transformers", "timm", "diffusers"):
        __import__(library)
    for name in names:
        published_models.MODELS[name]()  # imports it once, for all that are forked
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"cells": {}}
    for name in names:
        record["cells"].setdefault(name, {}).update(row(name, given.layout))
        record |= {"date": str(date.today()), "torch": torch.__version__}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        PAGE.write_text(page(record))


if __name__ == "__main__":
    main()
