"""By hand: models of transformers loaded, saved and resumed under strategies; writes a table to
docs/transformers.md.

    python benchmarks/transformers_strategies.py [model ...] [--strategy NAME ...] [-v]

Each cell is two fits in 2 processes, of 8 samples a step, by SGD with momentum, in float64
(DeepSpeed in float32):

1. two steps from a folder that transformers wrote. What the ranks have loaded equals what
   from_pretrained loads, and what they save equals from_pretrained of it, bit by bit. What they
   stream by PretrainedWeights, written to a folder, is what from_pretrained loads of the saved one,
   bit by bit. On one device the checkpoint goes on for two steps more;
2. two steps that go on from a checkpoint of one device.

Weights after four steps differ from those of a run on one device that never stopped by what the
table says. A difference above 1e-12, or 1e-5 in float32, is wrong. Results are kept in
transformers_strategies.json, and a run replaces those of its cells.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # its threads would keep ranks from being forked

import torch
import tqdm
import transformers
from safetensors.torch import save_file
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

sys.path.append(str(Path(__file__).parents[1] / "plugins/transformers/tests"))
from transformers_models import MODELS, make

with suppress(ImportError):
    import core_deepspeed.conformance  # noqa: F401  # imports DeepSpeed once, and not in each of the ranks

from core import Callback, ConfigurationError, Module, ModuleError, UnsupportedError
from core.fabric import WholeTensors
from core.strategies import ModelParallelStrategy
from core_parallel import MeshParallelStrategy
from core_testing.ranks import Backend
from core_transformers import LoadPretrained, PretrainedWeights, SavePretrained, from_config
from core_transformers.model_state import ModelState

MIXTURES = ("mixture", "experts")
STRATEGIES: dict[str, Any] = {
    "single_device": lambda name: "single_device",
    # The last layer of a tower for images isn't used.
    "ddp": lambda name: "ddp_find_unused_parameters_true" if name == "vision_language" else "ddp",
    "fsdp": lambda name: "fsdp",
    "model_parallel": lambda name: ModelParallelStrategy(),
    "deepspeed_stage_3": lambda name: "deepspeed_stage_3",
    "tensor=2": lambda name: MeshParallelStrategy(tensor=2),
    "pipeline=2": lambda name: MeshParallelStrategy(pipeline=2),
    "shard=2": lambda name: MeshParallelStrategy(
        data=1, shard=2, expert=2 if name in MIXTURES else 1
    ),
}
SHARED = ("model_parallel", "tensor=2", "pipeline=2")
RECORD, PAGE = (
    Path(__file__).with_suffix(".json"),
    Path(__file__).parents[1] / "docs" / "transformers.md",
)
COLWISE = re.compile(r"\.(gate_proj|up_proj|fc1|wi|\d+\.intermediate\.dense)$")
ROWWISE = re.compile(r"\.(down_proj|fc2|wo|\d+\.output\.dense)$")


class Learner(Module):
    def __init__(self, folder: Path, auto: Any, is_cut: bool) -> None:
        super().__init__()
        self.folder, self.auto, self.is_cut = folder, auto, is_cut

    def configure_model(self) -> None:
        config = transformers.AutoConfig.from_pretrained(self.folder)
        config._experts_implementation = "eager"  # torch's grouped product has no float64
        self.model = from_config(self.trainer, config, self.auto)
        if self.is_cut:
            linear = {
                name
                for name, each in self.model.named_modules()
                if isinstance(each, torch.nn.Linear)
            }
            plan: dict[str, Any] = {
                name: ColwiseParallel() for name in linear if COLWISE.search(name)
            }
            plan |= {name: RowwiseParallel() for name in linear if ROWWISE.search(name)}
            parallelize_module(self.model, self.device_mesh["tensor_parallel"], plan)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Whole(Callback):
    """The whole weights at the beginning and the end, on rank 0; those that are streamed; and a
    checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first: dict[str, torch.Tensor] = {}
        self.last: dict[str, torch.Tensor] = {}
        self.streamed: dict[str, torch.Tensor] = {}

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        self.first = _whole(trainer, module)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self.last = _whole(trainer, module)
        streamed = {name: tensor.clone() for name, tensor in PretrainedWeights(trainer, module)}
        self.streamed = streamed if trainer.is_global_zero else {}
        trainer.save_checkpoint(self.path)


def _whole(trainer: Any, module: Any) -> dict[str, torch.Tensor]:
    leaves = {name: each[0] for name, each in ModelState(trainer, module).leaves.items()}
    tensors = WholeTensors(trainer.strategy, leaves)
    found = {name: tensors.get(name).clone() for name in leaves}
    return found if trainer.is_global_zero else {}


def _batches(name: str, dtype: torch.dtype, size: int) -> Any:
    draw = torch.Generator().manual_seed(5)
    words = torch.randint(0, 60, (32, 6), generator=draw)
    images = torch.randn(32, 3, 16, 16, generator=draw).to(dtype)
    samples: list[dict[str, Any]] = []
    for word, image in zip(words, images, strict=True):
        if name == "vision":
            samples.append({"pixel_values": image, "labels": word[0] % 2})
        elif name == "vision_language":
            ids = torch.cat([torch.full((16,), 63), word])
            samples.append({"pixel_values": image, "input_ids": ids, "labels": ids})
        else:
            samples.append({"input_ids": word, "labels": word})
    return torch.utils.data.DataLoader(samples, batch_size=size)  # type: ignore[arg-type]


def _fit(
    rank: Any, name: str, strategy: str, folder: Path, steps: int, ckpt_path: Path | None, out: Path
) -> Any:
    """On all ranks. Train, write `out/saved`, `out/streamed` and `out/last.ckpt`; the whole weights
    at both ends.
    """
    whole = Whole(out / "last.ckpt")
    precision = rank.backend.options["precision"]
    size = 8 if strategy in SHARED else 8 // rank.backend.num_processes
    callbacks = [LoadPretrained(folder), whole, SavePretrained(out / "saved")]
    trainer = rank.trainer(max_steps=steps, callbacks=callbacks)
    dtype = torch.float64 if precision == "64-true" else torch.float32
    learner = Learner(folder, MODELS[name][2], strategy == "model_parallel")
    trainer.fit(learner, _batches(name, dtype, size), ckpt_path=ckpt_path)
    if whole.streamed:
        (out / "streamed").mkdir()
        shutil.copy(out / "saved" / "config.json", out / "streamed")
        save_file(whole.streamed, out / "streamed" / "model.safetensors", {"format": "pt"})
    return whole.first, whole.last


def _run(name: str, strategy: str, precision: str, *args: Any) -> Any:
    backend = Backend(
        partial(STRATEGIES[strategy], name),
        num_processes=1 if strategy == "single_device" else 2,
        options={"precision": precision},
        timeout_s=200,
    )
    return backend.run(_fit, name, strategy, *args)[0]


def _loaded(name: str, folder: Path, dtype: Any = "auto") -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = (
        MODELS[name][2].from_pretrained(folder, dtype=dtype).state_dict()
    )
    return loaded


def _differing(own: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    """The names of tensors that aren't the expected ones, bit by bit."""
    return [name for name in expected if name not in own or not _is_same(own[name], expected[name])]


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    bits = [each.contiguous().view(-1).view(torch.uint8) for each in (one, other)]
    return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(*bits)


def _cell(name: str, strategy: str, folder: Path) -> dict[str, Any]:
    precision, limit = ("32-true", 1e-5) if strategy.startswith("deepspeed") else ("64-true", 1e-12)
    first = folder / name
    if not first.exists():
        make(name, first)
    one = folder / f"{name}-{precision}"
    if not (one / "whole.pt").exists():
        shutil.rmtree(one, ignore_errors=True)
        _, last = _run(name, "single_device", precision, first, 4, None, one / "whole")
        _run(name, "single_device", precision, first, 2, None, one / "half")
        torch.save(last, one / "whole.pt")
    expected = torch.load(one / "whole.pt")
    out = folder / f"{name}-{strategy}"
    shutil.rmtree(out, ignore_errors=True)
    begun, ended = _run(name, strategy, precision, first, 2, None, out / "first")
    dtype = torch.float64 if precision == "64-true" else torch.float32
    if wrong := _differing(begun, _loaded(name, first, dtype)):
        return {"verdict": "wrong", "text": f"loaded: {wrong[:3]}"}
    saved = _loaded(name, out / "first" / "saved")
    if wrong := _differing(ended, saved):
        return {"verdict": "wrong", "text": f"saved: {wrong[:3]}"}
    if wrong := _differing(_loaded(name, out / "first" / "streamed"), saved):
        return {"verdict": "wrong", "text": f"streamed: {wrong[:3]}"}
    _, left = _run(
        name, "single_device", precision, first, 4, out / "first" / "last.ckpt", out / "left"
    )
    _, come = _run(name, strategy, precision, first, 4, one / "half" / "last.ckpt", out / "come")
    largest = max(
        float((each[key] - expected[key]).abs().max()) for each in (left, come) for key in expected
    )
    if not largest <= limit:
        return {"verdict": "wrong", "text": f"resumed: {largest:.1e}"}
    return {"verdict": "right", "text": f"{largest:.0e}" if largest else "0"}


def _result(name: str, strategy: str, folder: Path, is_loud: bool) -> dict[str, Any]:
    try:
        return _cell(name, strategy, folder)
    except Exception as error:
        if is_loud:
            traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        said = re.search(r"core\.\S*\.(?:Module|Configuration|Unsupported)Error: (.*)", text)
        is_refused = said is not None or isinstance(
            error, (ConfigurationError, ModuleError, UnsupportedError)
        )
        return {
            "verdict": "refused" if is_refused else "crash",
            "text": said[1] if said else text[-600:],
        }


def _table(results: dict[str, dict[str, Any]]) -> str:
    reasons: list[str] = []
    rows = [
        f"| model | {' | '.join(f'`{each}`' for each in STRATEGIES)} |",
        f"| --- |{' --- |' * len(STRATEGIES)}",
    ]
    for name, (config, _, _) in MODELS.items():
        cells = []
        for strategy in STRATEGIES:
            found = results.get(f"{name} {strategy}", {"verdict": "not run", "text": ""})
            text = found["text"] if found["verdict"] == "right" else found["verdict"]
            if found["verdict"] in ("refused", "wrong", "crash"):
                if found["text"] not in reasons:
                    reasons.append(found["text"])
                text = (
                    f"{'fails' if text == 'crash' else text} ({reasons.index(found['text']) + 1})"
                )
            cells.append(text)
        kind = config.__name__.removesuffix("Config")
        rows.append(f"| {kind}, {name.replace('_', ' ')} | {' | '.join(cells)} |")
    footnotes = "".join(f"\n\n({number}) {reason}" for number, reason in enumerate(reasons, 1))
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return "\n".join(rows) + footnotes + f"\n\nRun by hand on {date.today()} with {versions}.\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=[*MODELS])
    parser.add_argument("--strategy", action="append", choices=STRATEGIES)
    parser.add_argument("-v", action="store_true")
    asked = parser.parse_args()
    results = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    number_wrong = 0
    tqdm.tqdm.monitor_interval = 0  # likewise
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.models or MODELS:
            for strategy in asked.strategy or STRATEGIES:
                started_s = time.monotonic()
                found = results[f"{name} {strategy}"] = _result(
                    name, strategy, Path(folder), asked.v
                )
                number_wrong += found["verdict"] in ("wrong", "crash")
                took = f"{time.monotonic() - started_s:4.0f} s"
                print(f"{name:16} {strategy:18} {found['verdict']:8} {took}  {found['text'][:300]}")
                RECORD.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    if PAGE.exists():
        page = PAGE.read_text(encoding="utf-8")
        head, mark, rest = page.partition("<!-- transformers_strategies.py -->\n")
        tail = rest.partition("<!-- -->")[2]
        if mark:
            PAGE.write_text(f"{head}{mark}\n{_table(results)}\n<!-- -->{tail}", encoding="utf-8")
    return int(number_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
