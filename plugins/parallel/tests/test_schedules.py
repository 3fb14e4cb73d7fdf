"""Steps through torch's schedules compute what one device does, with the user's step unchanged; or are refused."""

from __future__ import annotations

import random
import re
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pipelines
import pytest
import torch
from axes import in_both_forms
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import ConfigurationError, CoreError, Module, WorkerError
from core.callbacks import Callback
from core.checkpoint import DistributedCheckpointIO
from core.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
from core_parallel import MeshParallelStrategy
from core_parallel.microbatches.batches import cut_batch
from core_parallel.pipeline import scheduled_step, schedules
from core_testing.ranks import Backend, one_device
from core_testing.training import assert_equal_tensors, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core_testing.ranks import Rank

SCHEDULES = ["GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]


def on_pipeline(function: Any, *args: Any, pipeline: int = 2, data: int = 1, **options: Any) -> list[Any]:
    """Call `function(rank, *args)` on the ranks of such a mesh."""
    strategy = partial(MeshParallelStrategy, pipeline=pipeline, **options)
    return Backend(strategy, "cpu", pipeline * data, data).run(function, *args)


# numbers ----------------------------------------------------------------------------------------------------------


class Deep(pipelines.Net):
    """`Net` with more parts, so that there are enough for two stages on each of four ranks."""

    def __init__(self) -> None:
        super().__init__(noise=0.0)
        torch.manual_seed(1)
        self.temperature = nn.Parameter(torch.tensor([1.3], dtype=torch.float64))  # fsdp takes no number
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(8)]).double()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.log("before", batch[0].mean(), on_step=False, on_epoch=True)
        loss = super().training_step(batch, batch_idx)
        self.log_dict({"largest": loss, "whole": 2}, reduce_fx="max")
        return loss


def fit(rank: Rank, num_samples: int, num_accumulated: int, **sizes: Any) -> Any:
    """Weights, the values of steps, and those of the epoch."""
    seen, module = pipelines.Seen(), Deep()
    strategy = MeshParallelStrategy(**sizes) if sizes else None
    trainer = rank.trainer(
        strategy,
        max_epochs=1,
        callbacks=seen,
        accumulate_grad_batches=num_accumulated,
        gradient_clip_val=0.3,
        limit_val_batches=0,
    )
    trainer.fit(module, pipelines.loader(num_samples, 8 // rank.backend.data_parallel_size))
    values = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return seen.weights, seen.steps, values


def fit_all(rank: Rank, names: list[str], num_samples: int, num_accumulated: int, **sizes: Any) -> list[Any]:
    """The same with several schedules, in one group of ranks."""
    return [fit(rank, num_samples, num_accumulated, schedule=name, **sizes) for name in names]


def assert_equal_runs(runs: list[Any], num_samples: int, num_accumulated: int, *, names: list[str]) -> None:
    """All runs of the first rank have the numbers of one device, and callbacks of all ranks see the same."""
    weights, _, values = one_device("cpu").run(fit, num_samples, num_accumulated)[0]
    for name, (found, _, logged), other in zip(names, runs[0], runs[-1], strict=True):
        assert_equal_tensors(found, weights, 1e-12)
        assert logged["loss_epoch"] == pytest.approx(values["loss_epoch"], abs=1e-12), name
        assert logged["before"] == pytest.approx(values["before"], abs=1e-12), name
        assert logged["whole"] == 2
        assert other[2]["loss_epoch"] == logged["loss_epoch"], name


@pytest.mark.numbers
@pytest.mark.parametrize(
    "names", [["1F1B", "ZBVZeroBubble"], pytest.param(SCHEDULES, marks=pytest.mark.slow)], ids=["two", "all"]
)
def test_schedules_equal_one_device(names: list[str]) -> None:
    # 22 samples in batches of 8: the last has 6, for which 4 microbatches become 3. Windows of 2.
    runs = on_pipeline(partial(fit_all, microbatches=4, pipeline=2), names, 22, 2)
    assert_equal_runs(runs, 22, 2, names=names)
    steps = one_device("cpu").run(fit, 22, 2)[0][1]
    for _, own, _ in (*runs[0], *runs[1]):
        assert own == pytest.approx(steps, abs=1e-12)


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize("num_windows", [5, pytest.param(20, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("pipeline", "data"),
    [(2, 2), *(pytest.param(*sizes, marks=pytest.mark.exhaustive) for sizes in [(2, 1), (4, 1), (4, 2)])],
)
def test_cells_equal_one_device(pipeline: int, data: int, num_windows: int) -> None:
    names = ["GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble"]
    num_samples = 16 * num_windows - 2 * data  # windows of 2 batches, and the last batch is uneven
    strategy = partial(MeshParallelStrategy, pipeline=pipeline)
    backend = Backend(strategy, "cpu", pipeline * data, data, timeout_s=500)
    runs = backend.run(partial(fit_all, pipeline=pipeline, microbatches=4), names, num_samples, 2)
    assert_equal_runs(runs, num_samples, 2, names=names)


class Saves(pipelines.Seen):
    """Saves in the middle of the epoch, and looks at weights and optimizer at its end."""

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self.path = path
        self.optimizer: Any = None

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1 and self.path is not None:
            trainer.save_checkpoint(self.path)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        super().on_train_end(trainer, module)
        state = trainer.strategy.get_optimizer_state_dict(trainer.optimizers[0])
        self.optimizer = {
            (name, key): whole(value, trainer.strategy)
            for name, entry in state.get("state", {}).items()
            for key, value in entry.items()
        }


def fit_on(rank: Rank, save: Path | None, load: Path | None) -> Any:
    """One epoch of 4 steps, or what is left of it."""
    seen = Saves(save)
    trainer = rank.trainer(max_epochs=1, callbacks=seen, limit_val_batches=0)
    trainer.fit(Deep(), pipelines.loader(32, 8 // rank.backend.data_parallel_size), ckpt_path=load)
    return seen.weights, seen.optimizer, trainer.global_step


BACKENDS: dict[str, tuple[Any, int, int]] = {
    **{name: (partial(MeshParallelStrategy, pipeline=2, schedule=name), 2, 1) for name in SCHEDULES},
    "ZBVZeroBubble x data": (partial(MeshParallelStrategy, pipeline=2, schedule="ZBVZeroBubble"), 4, 2),
    "ddp": (DDPStrategy, 2, 2),
    "fsdp": (FSDPStrategy, 2, 2),
    "one device": (SingleDeviceStrategy, 1, 1),
}


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("source", "target", "form"),
    in_both_forms(
        {
            "GPipe-ddp": ("GPipe", "ddp"),
            "1F1B-fsdp": ("1F1B", "fsdp"),
            "Interleaved1F1B-data": ("Interleaved1F1B", "ZBVZeroBubble x data"),
            "ZBVZeroBubble-one": ("ZBVZeroBubble", "one device"),
            "ddp-ZBVZeroBubble": ("ddp", "ZBVZeroBubble"),
            "fsdp-Interleaved1F1B": ("fsdp", "Interleaved1F1B"),
            "one-1F1B": ("one device", "1F1B"),
        },
        *("Interleaved1F1B-data", "ZBVZeroBubble-one", "fsdp-Interleaved1F1B in one file"),
    ),
)
def test_checkpoints_go_on_elsewhere_in_the_middle_of_an_epoch(
    source: str, target: str, form: Any, tmp_path: Path
) -> None:
    def backend(name: str) -> Backend:
        strategy, num_processes, data_parallel_size = BACKENDS[name]
        return Backend(lambda: strategy(checkpoint_io=form()), "cpu", num_processes, data_parallel_size)

    path = tmp_path / "middle.ckpt"
    backend(source).run(fit_on, path, None)
    weights, optimizer, num_steps = backend(target).run(fit_on, None, path)[0]
    expected, expected_optimizer, expected_steps = one_device("cpu", is_kept=False).run(fit_on, None, None)[0]
    assert num_steps == expected_steps == 4
    assert_equal_tensors(weights, expected, 1e-12)
    if form is DistributedCheckpointIO or target == "one device":  # else another rank may not have what is whole
        assert optimizer.keys() == expected_optimizer.keys()
    for key, value in optimizer.items():
        torch.testing.assert_close(torch.as_tensor(value), torch.as_tensor(expected_optimizer[key]), rtol=0, atol=1e-12)


# what a step does around the call -----------------------------------------------------------------------------------


class Row(Module):
    """Four linear layers, and a step that a test replaces."""

    def __init__(self, step: Callable[[Any, Any], Any], parts: Callable[[Any], list[Any]] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step = step
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.num_steps = 0
        self.parts = parts
        self.double()

    def pipeline(self) -> list[Any]:
        return list(self.layers) if self.parts is None else self.parts(self)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.pipeline():
            x = part(x)
        return x

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.num_steps += 1
        return self.step(self, batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def rows(num_samples: int = 8, batch_size: int = 8) -> Any:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(num_samples, 4, generator=generator, dtype=torch.float64)
    return DataLoader(TensorDataset(inputs, torch.arange(num_samples) % 3), batch_size=batch_size)


def train_rows(rank: Rank, step: Any, parts: Any = None, prepare: Any = None, **options: Any) -> Any:
    """One epoch: weights, values and the number of calls of the step."""
    module, seen = Row(step, parts), pipelines.Seen()
    seen.on_train_batch_end = lambda *_: None  # type: ignore[method-assign]
    if prepare is not None:
        prepare(module)
    trainer = rank.trainer(max_epochs=1, callbacks=seen, limit_val_batches=0, **options)
    trainer.fit(module, rows(16))
    return seen.weights, {name: float(value) for name, value in trainer.callback_metrics.items()}, module.num_steps


def mean_of_counted(model: Any, batch: Any) -> Any:
    """A mean over the items that count, of which the third microbatch of two samples has none."""
    inputs, _ = batch
    counts = (inputs[:, 0] != rows().dataset.tensors[0][4, 0]) & (inputs[:, 0] != rows().dataset.tensors[0][5, 0])
    loss = model(inputs)[counts].square().mean() * model.scale
    model.log("loss", loss, on_step=True, on_epoch=True)
    return {"loss": loss, "weight": counts.sum()}


def of_first_batch(model: Any, batch: Any) -> Any:
    """No item of the second batch counts."""
    inputs, _ = batch
    count = int((inputs[:, :1] == rows(16).dataset.tensors[0][:8, 0]).sum())
    return {"loss": (model(inputs).square().sum() / len(inputs) if count else 0 * model(inputs).sum()), "weight": count}


def logged_and_penalized(model: Any, batch: Any) -> Tensor:
    """Values of all reductions, before and after the call, and a penalty over what all ranks have."""
    inputs, _ = batch
    model.log("first", inputs[:, 0].mean(), on_epoch=True)
    output = model(inputs * model.scale)
    model.log("largest", output.max(), reduce_fx="max", on_epoch=True)
    model.log("smallest", output.min(), True, True, True, True, "min")
    model.log("sum", output.sum(), reduce_fx=torch.sum, on_epoch=True)
    model.log("size", output.mean(), batch_size=len(inputs), on_epoch=True)
    return output.square().mean() + model.scale.square()


def counted(model: Any, batch: Any) -> Tensor:
    """Counters, one that begins in a step, decide on the loss; the last part's weight and a mixture enter it too."""
    model.rate, model.num_calls = getattr(model, "rate", 1.0) / 2, getattr(model, "num_calls", 0) + model.num_steps
    inputs, _ = batch
    loss = (model(inputs) @ model.layers[3].weight).square().mean() * model.num_calls
    model.log("rate", model.rate, on_epoch=True)
    return loss + model.rate * model.scale.square()


def frozen(model: Any) -> None:
    model.layers[0].requires_grad_(False)
    model.layers[1].requires_grad_(False)


class TakesDict(nn.Linear):
    """A part that takes what `in_dicts` makes."""

    def forward(self, given: Any) -> Tensor:  # type: ignore[override]
        x = given["x"].sum(0).t().masked_fill(given["positive"], 0.5)
        return super().forward(x) + given["index"][:, None]


def taking(model: Any) -> None:
    model.layers[2] = TakesDict(4, 4).double()


def in_dicts(model: Any) -> list[Any]:
    """Between the stages goes a dict of a tensor that doesn't lie in one piece, booleans, and whole numbers."""

    def begin(x: Tensor) -> Any:
        return {"x": x.t().expand(2, -1, -1), "positive": x > 0, "index": torch.arange(1).expand(len(x))}

    return [*model.layers[:2], begin, *model.layers[2:]]


@pytest.mark.numbers
@pytest.mark.parametrize(
    ("step", "prepare", "num_accumulated"),
    [
        (mean_of_counted, None, 1),
        (of_first_batch, None, 2),
        (logged_and_penalized, None, 1),
        (logged_and_penalized, frozen, 1),
        (counted, None, 1),
    ],
    ids=["weighted", "no-items", "logged", "frozen", "counted"],
)
def test_steps_equal_one_device(step: Any, prepare: Any, num_accumulated: int) -> None:
    run = partial(train_rows, step=step, prepare=prepare, accumulate_grad_batches=num_accumulated)
    (weights, values, num_steps), other = on_pipeline(run, schedule="1F1B", microbatches=4)
    expected, expected_values, expected_steps = one_device("cpu", is_kept=False).run(run)[0]
    assert_equal_tensors(weights, expected, 1e-12)
    assert values == pytest.approx(expected_values, abs=1e-12)
    assert values == other[1]
    assert num_steps == other[2] == expected_steps == 2, "a counter goes up once a batch, and the trial doesn't count"


def of_noise(model: Any, batch: Any) -> Tensor:
    """The error of a model that was given noise, and is the identity: 0 if both ranks have drawn the same."""
    inputs, _ = batch
    noise = torch.randn_like(inputs) + torch.rand(()) + random.random()
    loss = (model(noise) - noise).square().mean()
    model.log("loss", loss)
    model.log("noise", noise.mean())
    return loss


def identity(model: Any) -> None:
    for layer in model.layers:
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)


def test_both_ends_of_a_step_draw_the_same() -> None:
    run = partial(train_rows, step=of_noise, prepare=identity)
    runs = on_pipeline(run, schedule="1F1B", microbatches=4)
    assert runs[0][1]["loss"] == 0
    assert runs[0][1]["noise"] != 0


def test_tensors_of_any_kind_go_between_stages() -> None:
    run = partial(train_rows, step=logged_and_penalized, parts=in_dicts, prepare=taking)
    (weights, values, _), _ = on_pipeline(run, schedule="1F1B", microbatches=4)
    expected, expected_values, _ = one_device("cpu", is_kept=False).run(run)[0]
    assert_equal_tensors(weights, expected, 1e-12)
    assert values == pytest.approx(expected_values, abs=1e-12)


def by_fabric(rank: Rank) -> Any:
    """Two steps of a loop by hand: losses, and weights."""
    fabric, module = rank.fabric(precision="64-true"), Row(lambda *_: None)
    model = fabric.setup(module)
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
    losses = []
    for batch in rows(16):
        losses.append(float(fabric.step(model, batch, loss_of)))
        optimizer.step()
        optimizer.zero_grad()
    state = fabric.strategy.get_module_state_dict(module, layout="full")
    fabric.teardown()
    return losses, state


@pytest.mark.numbers
def test_a_loop_by_hand_steps_through_a_schedule() -> None:
    (losses, weights), other = on_pipeline(by_fabric, schedule="ZBVZeroBubble", microbatches=4)
    expected, expected_weights = one_device("cpu", is_kept=False).run(by_fabric)[0]
    assert losses == pytest.approx(expected, abs=1e-12)
    assert other[0] == losses
    assert_equal_tensors(weights, expected_weights, 1e-12)


# blocks around the call ---------------------------------------------------------------------------------------------


FACTORS = [1.0]
EVENTS: list[str] = []
SCHEDULES_OF_BLOCKS = ("1F1B", "Interleaved1F1B", "ZBVZeroBubble")


@contextmanager
def factor_of(number: float) -> Iterator[None]:
    """A context that can't be entered twice, and shows whether an exception has ended it."""
    assert FACTORS == [1.0]
    FACTORS[0] = number
    try:
        yield
        EVENTS.append("left")
    finally:
        FACTORS[0] = 1.0


def times_factor(model: Any) -> list[Any]:
    def times(x: Tensor) -> Tensor:
        return x * FACTORS[0]

    return [part for layer in model.layers for part in (layer, times)]


def within_blocks(model: Any, batch: Any) -> Tensor:
    EVENTS.append("begun")
    try:
        with factor_of(1.5):
            loss = loss_of(model, batch)
        model.log("loss", loss, on_epoch=True)
        EVENTS.append("ended")
        return loss
    finally:
        EVENTS.append("finally")


@factor_of(1.5)
def decorated(model: Any, batch: Any) -> Tensor:
    EVENTS.append("begun")
    return loss_of(model, batch)


def deeper(model: Any, batch: Any) -> Tensor:
    return within_blocks(model, batch)


def by_fabric_in_blocks(rank: Rank, schedule: str | None) -> Any:
    """One step of a loop by hand: loss, weights, the events of the step, and the places that warnings name."""
    EVENTS.clear()
    strategy = None if schedule is None else MeshParallelStrategy(pipeline=2, schedule=schedule)
    fabric, module = rank.fabric(strategy, precision="64-true"), Row(lambda *_: None, times_factor)
    model = fabric.setup(module)
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
    with mock.patch.object(scheduled_step._log, "warning") as warned:
        loss = float(fabric.step(model, next(iter(rows())), decorated))
    optimizer.step()
    state = fabric.strategy.get_module_state_dict(module, layout="full")
    fabric.teardown()
    return loss, state, [*EVENTS], [Path(call.args[-1]).name for call in warned.call_args_list]


@pytest.mark.numbers
def test_blocks_of_a_loop_by_hand_hold_and_end_once() -> None:
    loss, expected, events, _ = one_device("cpu", is_kept=False).run(by_fabric_in_blocks, None)[0]
    first, last = Backend(MeshParallelStrategy, "cpu", 2, 1).run(by_fabric_in_blocks, "1F1B")
    assert (first[0], last[0]) == pytest.approx((loss, loss), abs=1e-12)
    assert first[2] == last[2] == 2 * events, "the trial before the first step runs to its end too"
    assert_equal_tensors(first[1], expected, 1e-12)
    [place], nothing = first[3], last[3]
    assert place.startswith("test_schedules.py:")
    assert not nothing, "one rank says it"


def beside_blocks(model: Any, batch: Any) -> Tensor:
    """Blocks that end before the call, or begin after it, leave the schedule as it is."""
    with factor_of(2.0):
        inputs = batch[0] * FACTORS[0]
    try:
        pass
    finally:
        loss = model(inputs)
    with factor_of(3.0):
        return (loss.square() * FACTORS[0]).mean()


def train_in_blocks(rank: Rank, step: Any, schedule: str | None, num_rows: int = 16) -> Any:
    """Some batches: weights and values, the events of each, and whether a schedule is set up."""
    EVENTS.clear()
    events: list[list[str]] = []

    class Splits(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            events.append([*EVENTS])
            EVENTS.clear()

    options = {} if schedule is None else {"strategy": MeshParallelStrategy(pipeline=2, schedule=schedule)}
    module, seen = Row(step, times_factor), pipelines.Seen()
    seen.on_train_batch_end = lambda *_: None  # type: ignore[method-assign]
    trainer = rank.trainer(max_epochs=1, callbacks=[Splits(), seen], limit_val_batches=0, **options)
    trainer.fit(module, rows(num_rows))
    values = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return seen.weights, values, events


def train_in_all_blocks(rank: Rank, schedules: Any, step: Any, num_rows: int = 16) -> list[Any]:
    return [train_in_blocks(rank, step, schedule, num_rows) for schedule in schedules]


@pytest.mark.numbers
@pytest.mark.parametrize(
    "step", [within_blocks, *(pytest.param(step, marks=pytest.mark.slow) for step in (decorated, deeper))]
)
def test_blocks_around_the_call_hold_in_all_stages_and_end_once(step: Any) -> None:
    run = partial(train_in_all_blocks, step=step)
    [(expected, values, expected_events)] = one_device("cpu", is_kept=False).run(run, [None])[0]
    assert expected_events[1] == {decorated: ["begun", "left"]}.get(step, ["begun", "left", "ended", "finally"])
    for runs in Backend(MeshParallelStrategy, "cpu", 2, 1).run(run, SCHEDULES_OF_BLOCKS):
        for weights, others, events in runs:
            assert_equal_tensors(weights, expected, 1e-12)
            assert others == pytest.approx(values, abs=1e-12)
            assert events[0] == 2 * expected_events[0], "the trial before the first step runs to its end too"
            assert events[1:] == expected_events[1:]


@pytest.mark.numbers
def test_blocks_beside_the_call_leave_the_schedule() -> None:
    run = partial(train_in_all_blocks, step=beside_blocks, num_rows=40)
    [(expected, _, _)] = one_device("cpu", is_kept=False).run(run, [None])[0]
    # In the first four batches losses are compared: the module has a counter.
    [(first, _, (*_, events))], [(_, _, (*_, others))] = Backend(MeshParallelStrategy, "cpu", 2, 1).run(run, ["1F1B"])
    assert_equal_tensors(first, expected, 1e-12)
    assert (len(events), len(others)) == (4, 8), "of each of four microbatches, one rank runs what is before the call"


def in_block_later(model: Any, batch: Any) -> Tensor:
    if not model.trainer.global_step:
        return loss_of(model, batch)
    with factor_of(2.0):
        return loss_of(model, batch)


def test_a_block_that_only_later_steps_have_is_refused() -> None:
    expected = r"called the model within a block .*test_schedules\.py:\d+\), and .* it didn't"
    with pytest.raises(WorkerError, match=expected):
        on_pipeline(partial(train_rows, step=in_block_later), schedule="1F1B")


# what is refused ----------------------------------------------------------------------------------------------------


def loss_of(model: Any, batch: Any) -> Tensor:
    return model(batch[0]).square().mean()


def summed(model: Any, batch: Any) -> Tensor:
    return model(batch[0]).square().sum()


def contrasted(model: Any, batch: Any) -> Tensor:
    output = model(batch[0])
    return nn.functional.cross_entropy(output @ output.t(), torch.arange(len(output)))


def with_more(model: Any, batch: Any) -> Any:
    return {"loss": loss_of(model, batch), "output": batch[0]}


def twice(model: Any, batch: Any) -> Tensor:
    return loss_of(model, batch) + loss_of(model, batch)


def without_call(model: Any, batch: Any) -> Tensor:
    return model.scale.square()


def penalized(model: Any, batch: Any) -> Tensor:
    return loss_of(model, batch) + sum(one.square().sum() for one in model.parameters())


def decayed(model: Any, batch: Any) -> Tensor:
    return loss_of(model, batch) + sum(one.detach().square().sum() for one in model.parameters())


def tied(model: Any, batch: Any) -> Tensor:
    return (model(batch[0]) @ model.layers[0].weight.t()).square().mean()


def mixed(model: Any, batch: Any) -> Tensor:
    inputs, _ = batch
    share = torch.rand(()).to(inputs)
    return loss_of(model, [share * inputs + (1 - share) * inputs[torch.randperm(len(inputs))]])


def averaged(model: Any, batch: Any) -> Tensor:
    with torch.no_grad():
        torch.ones(4, 4).mul_(0.9).add_(model.layers[0].weight.data).add_(model.layers[3].weight.data)
    return loss_of(model, batch)


def counting_before(model: Any, batch: Any) -> Tensor:
    model.num_samples += len(batch[0])
    return loss_of(model, batch)


def counting_after(model: Any, batch: Any) -> Tensor:
    loss = loss_of(model, batch)
    model.num_samples = model.num_samples + len(batch[0])
    return loss


def clamping(model: Any, batch: Any) -> Tensor:
    loss = loss_of(model, batch)
    with torch.no_grad():
        model.scale.clamp_(max=2.0)
    return loss


def beside(model: Any, batch: Any) -> Tensor:
    return loss_of(model, batch) + model.layers[0](batch[0]).sum() + model.layers[3](batch[0]).sum()


def of_metric(model: Any, batch: Any) -> Tensor:
    model.log("loss", Computes())
    return loss_of(model, batch)


class Computes:
    """As torchmetrics' objects are."""

    def compute(self) -> float:
        return 0.0

    def reset(self) -> None:
        """Nothing is kept."""


def normed(model: Any) -> None:
    model.layers[1] = nn.BatchNorm1d(4).double()


def counted_samples(model: Any) -> None:
    model.register_buffer("num_samples", torch.zeros(()))


def by_hand(model: Any) -> None:
    model.automatic_optimization = False


REFUSED: list[tuple[Any, Any, str]] = [
    (summed, None, r"loss for a batch is .*, and the mean of those for its 4 microbatches .* goes without schedule"),
    (contrasted, None, r"or mixes the samples of a batch, goes without schedule"),
    (with_more, None, "returned 'output' beside the loss. With a schedule the loss and its weight are brought to all"),
    (twice, None, "called Row twice, which has been cut into stages. With a schedule every step calls it once"),
    (without_call, None, "returned without a call of Row, which has been cut into stages"),
    (penalized, None, "square was called with a parameter or buffer that another stage has"),
    (decayed, None, "square was called with a parameter or buffer that another stage has"),
    (mixed, None, r"mixes the samples of a batch, as mixup does, before it calls Row: .* first of 4 microbatches"),
    (tied, None, "t was called with a parameter or buffer that another stage has"),
    (averaged, None, "add_ was called with a parameter or buffer that another stage has"),
    (beside, None, r"Linear 'layers\.0' was called, and another rank of the pipeline has it"),
    (counting_before, counted_samples, "training step changes 'num_samples' of Row itself.* in on_train_batch_end"),
    (counting_after, counted_samples, "training step changes 'num_samples' of Row itself"),
    (clamping, None, "training step changes 'scale' of Row itself"),
    (loss_of, normed, "BatchNorm1d 'layers.1' would take its statistics from microbatches, of which schedule='1F1B'"),
    (loss_of, by_hand, r"automatic_optimization = False\), and a pipeline's schedule runs it for one microbatch"),
]


def errors_of(rank: Rank) -> list[str]:
    errors = []
    for step, prepare, _ in REFUSED:
        try:
            train_rows(rank, step, prepare=prepare)
            errors.append("nothing")
        except CoreError as error:
            errors.append(str(error))
    return errors


@pytest.mark.slow
def test_what_a_schedule_cannot_do_right_is_refused_by_name_on_all_ranks() -> None:
    for errors in on_pipeline(errors_of, schedule="1F1B", microbatches=4):
        for error, (step, _, expected) in zip(errors, REFUSED, strict=True):
            assert re.search(expected, error), (step, error)


def keeping(model: Any) -> list[Any]:
    def keep(x: Tensor) -> Tensor:
        model.layers[0].loss = x.square().mean()
        return x

    return [model.layers[0], keep, *model.layers[1:]]


def keeping_outside(model: Any) -> list[Any]:
    def keep(x: Tensor) -> Tensor:
        model.balance = [x.square().mean()]
        return x

    return [model.layers[0], keep, *model.layers[1:]]


def logging(model: Any) -> list[Any]:
    def log(x: Tensor) -> Tensor:
        model.log("inside", x.mean())
        return x

    return [model.layers[0], log, *model.layers[1:]]


class Shrinks(nn.Linear):
    """A part whose result's shape follows from numbers: in the second batch."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls = [*getattr(self, "calls", ()), len(x)]  # a list: numbers that change are refused before
        return super().forward(x)[: 1 if len(self.calls) > 10 else 2]


def shrinking(model: Any) -> list[Any]:
    if type(model.layers[1]) is nn.Linear:
        model.layers[1] = Shrinks(4, 4).double()
    return list(model.layers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "parts", "expected"),
    [
        (loss_of, keeping, r"Linear 'layers\.0' keeps a tensor with a graph in its attribute 'loss'"),
        (loss_of, keeping_outside, r"Row keeps a tensor with a graph in its attribute 'balance'"),
        (loss_of, logging, r"self\.log\('inside'\) was called by a part of the model"),
        (loss_of, shrinking, r"Stage 0 .* returned tensors of .* for microbatch \d, and before of"),
        (of_metric, None, r"self\.log\('loss'\) got a Computes; with a schedule expected a number"),
    ],
)
def test_what_one_rank_finds_ends_all(step: Any, parts: Any, expected: str) -> None:
    with pytest.raises(CoreError, match=expected):
        on_pipeline(partial(train_rows, step=step, parts=parts), schedule="1F1B", microbatches=4)


def test_a_torch_whose_schedules_fail_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.9.1+cpu"))
    with pytest.raises(
        ConfigurationError, match=r"schedule='1F1B' needs torch 2\.13 or later, and this is 2\.9\.1\+cpu"
    ):
        schedules.find("1f1b")
    assert schedules.find(None) is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"schedule": "2F2B"}, r"schedule='2F2B': expected one of torch's schedules \('GPipe', '1F1B', .*; or None"),
        ({"schedule": "1F1B", "stages_per_rank": 2}, "stages_per_rank=2 with schedule='1F1B', which has one stage on"),
        ({"stages_per_rank": 2}, "stages_per_rank=2 with schedule=None, which has one stage on each"),
        ({"schedule": "dualpipev", "stages_per_rank": 3}, "a rank has exactly 2"),
    ],
)
def test_options_that_do_not_fit(options: Any, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        MeshParallelStrategy(pipeline=2, **options)


@pytest.mark.parametrize(
    ("name", "given", "size", "expected"),
    [
        ("GPipe", 4, 6, 3),
        ("1F1B", None, 8, 8),
        ("1F1B", 4, 7, 7),
        ("1F1B", 4, 3, None),
        ("Interleaved1F1B", 8, 30, 6),
        ("ZBVZeroBubble", 4, 5, 1),
        ("GPipe", 4, 0, None),
    ],
)
def test_microbatches_divide_their_batch(name: str, given: int | None, size: int, expected: int | None) -> None:
    schedule = schedules.find(name)
    assert schedule is not None
    assert schedule.choose(given, size, num_ranks=4, num_stages=4) == expected


@dataclass(frozen=True)
class Named:
    """Samples with names, and what they have in common."""

    names: list[str]
    kind: str
    x: torch.Tensor


def test_batches_of_any_structure_are_cut() -> None:
    batch: dict[str, Any] = {"x": torch.arange(4), "pair": (torch.ones(4), torch.ones(1, 2)), "scale": 2, "none": None}
    batch |= {"names": list("abcd"), "others": tuple("abcd"), "nested": Named(list("abcd"), "s", batch["x"])}
    batch["mapping"] = OrderedDict(words=list("abcd"))
    first, second = cut_batch(batch, 4, 2)
    assert first["others"] == ("a", "b")
    assert second["nested"].names == second["mapping"]["words"] == ["c", "d"]
    assert (second["nested"].kind, second["nested"].x.tolist(), second["none"]) == ("s", [2, 3], None)
    assert isinstance(second["mapping"], OrderedDict)
    assert batch["nested"].names == batch["mapping"]["words"] == list("abcd")
    assert first["names"] == ["a", "b"]
    assert second["x"].tolist() == [2, 3]
    assert second["pair"][0].shape == (2,)
    assert second["pair"][1].shape == (1, 2)
    assert first["scale"] == 2
    with pytest.raises(CoreError, match="The batch holds a object, which can't be cut into microbatches"):
        cut_batch([torch.ones(4), object()], 4, 2)
