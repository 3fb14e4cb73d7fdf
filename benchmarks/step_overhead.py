"""The cost of a training step over the loop that a user would write by hand: calls, and
microseconds of CPU.

    python benchmarks/step_overhead.py

All contenders train, or evaluate, the same tiny model in one process, in turns, so that what
disturbs the machine disturbs all of them; times are those of the quickest runs, which were
disturbed least. Calls are Python's and C's, counted by `sys.setprofile` in a run of their own; they
are the same in every run.

Limits in time are shares of the raw loop's, measured in the same run: written for a machine on
which that takes `RAW_US`, and shown for the one that is there.
"""

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from core import Callback, Fabric, Module, Trainer

NUM_FEATURES, BATCH_SIZE = 32, 4


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(NUM_FEATURES, 2)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class ValidatingNet(Net):
    def validation_step(self, batch, batch_idx):
        return self.layer(batch)


class LoggingNet(Net):
    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).sum()
        self.log("loss", loss)
        return loss


class Listener(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        pass


class Batches:
    """The same batch again and again, so that the loader's own cost is nobody's."""

    def __init__(self, num_batches: int) -> None:
        self.batch, self.num_batches = torch.ones(BATCH_SIZE, NUM_FEATURES), num_batches

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self):
        for _ in range(self.num_batches):
            yield self.batch


def raw_loop(num_steps: int) -> None:
    module = Net()
    optimizer = module.configure_optimizers()
    for batch_idx, batch in enumerate(Batches(num_steps)):
        loss = module.training_step(batch, batch_idx)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def fabric_loop(
    make_fabric: Callable[[], Fabric], module_class: type[Module]
) -> Callable[[int], None]:
    def run(num_steps: int) -> None:
        fabric, module = make_fabric(), module_class()
        fabric.launch()
        model, optimizer = fabric.setup(module, module.configure_optimizers())
        step = model.training_step
        for batch_idx, batch in enumerate(Batches(num_steps)):
            loss = step(batch, batch_idx)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        fabric.teardown()

    return run


def raw_validation(num_batches: int) -> None:
    module = ValidatingNet().eval()
    with torch.inference_mode():
        for batch_idx, batch in enumerate(Batches(num_batches)):
            module.validation_step(batch, batch_idx)


OFF = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)


def trainer_loop(module_class: type[Net] = Net, **options) -> Callable[[int], None]:
    def run(num_steps: int) -> None:
        with tempfile.TemporaryDirectory() as root, redirect_stdout(io.StringIO()):
            trainer = Trainer(accelerator="cpu", max_epochs=1, default_root_dir=root, **options)
            trainer.fit(module_class(), Batches(num_steps))

    return run


def trainer_validation(num_batches: int) -> None:
    Trainer(accelerator="cpu", **OFF).validate(ValidatingNet(), Batches(num_batches))


@dataclass(frozen=True)
class Contender:
    """A loop, and what a step of it may cost more than a step of another one; None where nothing is
    promised.

    `max_us` is for a machine on which the raw loop takes `RAW_US`.
    """

    run: Callable[[int], None]
    over: str
    max_calls: int | None = None
    max_us: float | None = None


RAW, OFF_NAME, RAW_VALIDATION = "raw loop", "Trainer, everything off", "raw validation"
CONTENDERS = {
    RAW: Contender(raw_loop, RAW),
    "Fabric": Contender(fabric_loop(lambda: Fabric(accelerator="cpu"), Net), RAW, 20, 5),
    OFF_NAME: Contender(trainer_loop(**OFF), RAW, 40, 10),
    "Trainer, one self.log": Contender(trainer_loop(LoggingNet, **OFF), OFF_NAME, 15, 3),
    "Trainer, one callback hook": Contender(trainer_loop(callbacks=Listener(), **OFF), OFF_NAME, 2),
    "Trainer, no hook overridden": Contender(
        trainer_loop(callbacks=Callback(), **OFF), OFF_NAME, 0
    ),
    "Trainer, defaults": Contender(trainer_loop(LoggingNet), RAW, 150, 30),
    RAW_VALIDATION: Contender(raw_validation, RAW_VALIDATION),
    "Trainer.validate": Contender(trainer_validation, RAW_VALIDATION, None, 10),
}

RAW_US, BEGIN_LIMIT_MS = 49.0, 4.0


class Deep(Net):
    """With 1,000 submodules, and the time at which its first step began."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1, 1) for _ in range(1000))
        self.began_ns = 0

    def training_step(self, batch, batch_idx):
        self.began_ns = self.began_ns or time.process_time_ns()
        return super().training_step(batch, batch_idx)


def begin_ms(begins: Callable[[Deep], None]) -> float:
    """Milliseconds of CPU until the first step of a module with 1,000 submodules, which is there
    already.
    """
    module = Deep()
    started_ns = time.process_time_ns()
    begins(module)
    return (module.began_ns - started_ns) / 1e6


def begin_by_hand(module: Deep) -> None:
    optimizer = module.configure_optimizers()
    for batch_idx, batch in enumerate(Batches(1)):
        module.training_step(batch, batch_idx).backward()
        optimizer.step()


def begin_trainer(module: Deep) -> None:
    Trainer(accelerator="cpu", max_epochs=1, **OFF).fit(module, Batches(1))


@dataclass
class Figures:
    """Per step, with what is spent before and after the steps taken out."""

    calls: float
    cpu_us: float


def short_and_long(measure: Callable[[int], float], num_steps: int) -> tuple[float, float]:
    """The cost of a run of a tenth of the steps, and of one of all."""
    return measure(num_steps // 10), measure(num_steps)


def per_step(rounds: Sequence[tuple[float, float]], num_steps: int) -> float:
    """The slope between the quickest short run and the quickest long one: it has no share of
    starting and ending.
    """
    short, long = (min(column) for column in zip(*rounds, strict=True))
    return (long - short) / (num_steps - num_steps // 10)


def count_calls(run: Callable[[int], None]) -> Callable[[int], float]:
    def measure(num_steps: int) -> float:
        calls = 0

        def profile(frame, event, argument):
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(profile)
        try:
            run(num_steps)
        finally:
            sys.setprofile(None)
        return calls

    return measure


def cpu_us(run: Callable[[int], None]) -> Callable[[int], float]:
    def measure(num_steps: int) -> float:
        started = time.process_time_ns()
        run(num_steps)
        return (time.process_time_ns() - started) / 1e3

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for contender in CONTENDERS.values():
        contender.run(100)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
    begins: list[tuple[float, float]] = []
    for _ in range(arguments.rounds):
        for name, contender in CONTENDERS.items():
            times[name].append(short_and_long(cpu_us(contender.run), arguments.steps))
        begins.append((begin_ms(begin_trainer), begin_ms(begin_by_hand)))
    calls = {
        name: [short_and_long(count_calls(contender.run), 500)]
        for name, contender in CONTENDERS.items()
    }
    figures = {
        name: Figures(per_step(calls[name], 500), per_step(times[name], arguments.steps))
        for name in CONTENDERS
    }
    slower = figures[RAW].cpu_us / RAW_US
    show(figures, slower)
    begin = min(trainer for trainer, _ in begins) - min(by_hand for _, by_hand in begins)
    begin_limit_ms = BEGIN_LIMIT_MS * slower
    Console().print(
        f"A fit of 1,000 submodules begins {begin:.1f} ms later than by hand (making the Trainer "
        f"included); limit {begin_limit_ms:.1f} ms: {_verdict(begin, begin_limit_ms)}.\n"
        f"Where the raw loop takes {RAW_US:.0f} µs, the limits in time are those of "
        f"docs/benchmarks.md; here they are {slower:.2f} times as much."
    )


def show(figures: dict[str, Figures], slower: float) -> None:
    """Each contender beside the one that its limits are about; limits in time, `slower` times those
    for `RAW_US`.
    """
    table = Table(
        "contender",
        "calls",
        "µs CPU",
        "compared with",
        "calls more",
        "limit",
        "µs more",
        "limit",
        "holds",
    )
    for name, own in figures.items():
        contender = CONTENDERS[name]
        calls = own.calls - figures[contender.over].calls
        more_us = own.cpu_us - figures[contender.over].cpu_us
        max_us = None if contender.max_us is None else contender.max_us * slower
        verdicts = [_verdict(round(calls), contender.max_calls), _verdict(more_us, max_us)]
        table.add_row(
            name,
            f"{own.calls:.1f}",
            f"{own.cpu_us:.1f}",
            contender.over,
            f"{calls:+.1f}",
            _shown(contender.max_calls),
            f"{more_us:+.1f}",
            _shown(max_us),
            "NO" if "NO" in verdicts else "yes" if "yes" in verdicts else "",
        )
    Console(width=130).print(table)


def _shown(limit: float | None) -> str:
    return "" if limit is None else f"{limit:.3g}"


def _verdict(value: float, limit: float | None) -> str:
    return "" if limit is None else "yes" if value <= limit else "NO"


if __name__ == "__main__":
    main()
