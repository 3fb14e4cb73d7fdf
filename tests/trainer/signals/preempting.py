"""A fit that gets SIGTERM between any two lines, of core, of torch or of its own, and what comes of it.

    python tests/trainer/signals/preempting.py 1000 [SEED]

tries so many moments, as many in each phase of the run, prints a table, and ends with 1 if a signal was lost.
"""

import ast
import collections
import contextlib
import io
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import core.trainer.signals
from core import Callback, Module, Trainer
from core.callbacks import ModelCheckpoint

PHASES = (
    ("handlers come", ("interruption.__enter__",)),
    ("handlers go", ("interruption.__exit__",)),
    ("agreement", ("stop_agreement.agree",)),
    ("teardown", ("stage_lifecycle._end",)),
    ("on_exception", ("model_checkpoint.on_exception",)),
    ("checkpoint", ("snapshot.save",)),
    ("sanity check", ("stage_lifecycle._sanity_check",)),
    ("validation", ("fit._validate",)),
    ("set-up", ("stage_lifecycle._set_up",)),
    ("loading", ("loaders.open_train", "dataloader.__next__")),
    ("steps", ("fit._run_batches",)),
    ("between epochs", ("fit._run_to_end",)),
    ("stage", ("stage_lifecycle._run",)),
    ("before and after", ("preempting.fit", "__main__.fit")),
)
"""Phases by the files and functions that they happen in; the first that is on the stack counts."""

OF_SIGNALS = os.path.dirname(core.trainer.signals.__file__) + os.sep


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 1, dtype=torch.float64)

    def training_step(self, batch):
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch):
        self.log("score", self.layer(batch[0]).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Hears(Callback):
    def on_exception(self, trainer, module, exception):
        self.heard = exception


def fit(folder, **options):
    """Two epochs of three steps, with everything that a run may have. Returns the trainer and the weights."""
    torch.manual_seed(1)
    data = TensorDataset(torch.arange(24, dtype=torch.float64).reshape(12, 2) / 10)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        accumulate_grad_batches=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[Hears(), ModelCheckpoint(folder / "saved", every_n_train_steps=2, save_on_exception=True)],
    )
    module = Net()
    trainer.fit(module, DataLoader(data, 2, shuffle=True), DataLoader(data, 6), **options)
    return trainer, module.layer.weight.detach().flatten().tolist()


class Strike:
    """Counts the lines that run (in core/trainer/signals the instructions), and raises SIGTERM before one of them."""

    def __init__(self, number=None, tell=None):
        self.number, self.tell, self.count = number, tell, 0
        self.phases = collections.defaultdict(list)

    def run(self, function, *args):
        sys.settrace(self._trace)
        try:
            return function(*args)
        finally:
            sys.settrace(None)

    def _trace(self, frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(OF_SIGNALS):
            frame.f_trace_opcodes = True  # between any two instructions there
        if self.number is None:
            return self._count_in(phase_of(frame))
        if event in ("line", "opcode"):
            self.count += 1
            if self.count == self.number:
                self._raise(frame)
        return self._trace if self.count < self.number else None

    def _count_in(self, phase):
        """A trace of one call, which is all in one phase."""

        def count(frame, event, arg):
            if event in ("line", "opcode"):
                self.count += 1
                self.phases[phase].append(self.count)
            return count

        return count

    def _raise(self, frame):
        sys.settrace(None)
        where = phase_of(frame), f"{frame.f_code.co_filename}:{frame.f_lineno}"
        os.write(self.tell, f"{where!r}\n".encode())
        signal.raise_signal(signal.SIGTERM)


def phase_of(frame):
    names = set()
    while frame is not None:
        names.add(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")
        frame = frame.f_back
    return next((phase for phase, functions in PHASES if names.intersection(functions)), "outside")


def in_copy(function):
    """The result of a function in a forked copy of this process, and the code with which the copy ends.

    A signal may leave torch's modes as they were within a `with`, which only the end of a process undoes.
    """
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            with io.StringIO() as output, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                told, code = function(writer)
            os.write(writer, repr(told).encode()[:60_000])
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        told = file.read()
    status = os.waitpid(pid, 0)[1]
    lines = told.decode().splitlines()
    return [ast.literal_eval(line) for line in lines], os.waitstatus_to_exitcode(status)


def strike_at(number, folder, tell):
    """Fit, with the signal. What has happened, and the code that the process then ends with."""
    strike, handlers = Strike(number, tell), [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    code, what = 0, ""
    try:
        strike.run(fit, folder)
    except SystemExit as error:
        code = error.code
    except BaseException:
        code, what = 1, traceback.format_exc()
    if handlers != [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]:
        what += f"handlers stay, {code}"
    return what, code


def go_on(folder, tell):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing that was saved is damaged
        return fit(folder, ckpt_path="last")[1], 0


def try_at(number, expected):
    """The phase, and what came of the signal: `"ended"`, `"by the kernel"`, or how it went wrong, with the place."""
    with tempfile.TemporaryDirectory() as folder:
        told, code = in_copy(lambda tell: strike_at(number, Path(folder), tell))
        if not told or len(told[0]) != 2:
            return "no signal", "none came"  # the run has a line less now and then
        phase = told[0][0]
        if code == -signal.SIGTERM:
            outcome = "by the kernel"
        elif code == 143 and told[1:] == [""]:
            outcome = "ended"
        else:
            return phase, f"code {code}: {told}"
        [weights], code = in_copy(lambda tell: go_on(Path(folder), tell))
        fine = (weights, code) == (expected, 0)
        return phase, outcome if fine else f"goes on otherwise: {told}, {code}, {weights}"


def count_lines():
    """The numbers of the lines of an undisturbed run, by phase, and its weights."""
    with tempfile.TemporaryDirectory() as folder:
        fit(Path(folder))  # imports, caches
    with tempfile.TemporaryDirectory() as folder:
        strike = Strike()
        _, weights = strike.run(fit, Path(folder))
    return dict(strike.phases), weights


def try_many(num_trials, seed):
    """Outcomes by phase; about as many tries in each."""
    phases, expected = count_lines()
    dice, outcomes = random.Random(seed), collections.defaultdict(collections.Counter)
    for trial in range(num_trials):
        phase = sorted(phases)[trial % len(phases)]
        phase, outcome = try_at(dice.choice(phases[phase]), expected)
        outcomes[phase][outcome] += 1
    return phases, outcomes


def main():
    num_trials, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    began_s = time.monotonic()
    phases, outcomes = try_many(num_trials, seed)
    bad = 0
    for phase, counts in sorted(outcomes.items()):
        fine = {name: counts.pop(name, 0) for name in ("ended", "by the kernel", "none came")}
        bad += sum(counts.values())
        print(f"{phase:16} {len(phases.get(phase, [])):7} lines  {fine}  wrong: {sum(counts.values())}")
        for what, number in counts.most_common(12):
            print(f"    {number} x {what}")
    print(f"{num_trials} signals, {bad} wrong, {time.monotonic() - began_s:.0f} s")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
