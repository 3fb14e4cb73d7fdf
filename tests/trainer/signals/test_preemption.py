"""SIGTERM between any two lines of a run ends it, with a code that tells so; what was saved goes on to the same end.

CORE_TEST_SIGNALS=1000 tries so many, in place of 14.
"""

import ast
import collections
import contextlib
import io
import os
import random
import signal
import sys
import traceback
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import core.trainer.signals
from core import Trainer
from core.callbacks import ModelCheckpoint
from support.small_nets import QUIET, Net, batches

OF_SIGNALS = os.path.dirname(core.trainer.signals.__file__) + os.sep


class Validating(Net):
    def validation_step(self, batch):
        self.log("score", self.layer(batch).mean())


def fit(folder, **options):
    """Two epochs of three steps, with everything that a run may have. Returns the weights."""
    torch.manual_seed(1)
    saver = ModelCheckpoint(folder / "saved", every_n_train_steps=2, save_on_exception=True)
    on = {"enable_checkpointing": True, "num_sanity_val_steps": 1, "default_root_dir": folder, "callbacks": saver}
    module = Validating()
    data = torch.cat(batches(6))
    trainer = Trainer(**QUIET | on, max_epochs=2, accumulate_grad_batches=2)
    trainer.fit(module, DataLoader(data, 2, shuffle=True), DataLoader(data, 6), **options)
    return module.layer.weight.tolist()


class Strike:
    """Counts the lines that run (in core/trainer/signals the instructions), and raises SIGTERM before one of them."""

    def __init__(self, number=0):
        self.number, self.count = number, 0
        self.lines = collections.defaultdict(list)  # their numbers, by the file that they are of

    def run(self, function, *args):
        sys.settrace(self._trace)
        try:
            return function(*args)
        finally:
            sys.settrace(None)

    def _trace(self, frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(OF_SIGNALS):
            frame.f_trace_opcodes = True  # between any two instructions there
        if event in ("line", "opcode"):
            self.count += 1
            if not self.number:
                self.lines[frame.f_code.co_filename].append(self.count)
            elif self.count == self.number:
                sys.settrace(None)
                signal.raise_signal(signal.SIGTERM)
                return None
        return self._trace


def in_copy(function, *args):
    """What a function told in a forked copy of this process, and the code with which the copy ended.

    A signal may leave torch's modes as they were within a `with`, which only the end of a process undoes.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with io.StringIO() as output, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                told, code = function(*args)
            os.write(writer, repr(told).encode()[:60_000])
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as file:
        told = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return ast.literal_eval(told) if told else None, code


def strike_at(number, folder):
    """Fit, with the signal. What was wrong with its end, and the code that the process then ends with."""
    strike, handler = Strike(number), signal.getsignal(signal.SIGTERM)
    code, what = 0, ""
    try:
        strike.run(fit, folder)
    except SystemExit as error:
        code = error.code
    except BaseException:
        code, what = 1, traceback.format_exc()
    if signal.getsignal(signal.SIGTERM) is not handler:
        what += f"handlers stay, {code}"
    return what, code


def go_on(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing that was saved is damaged
        return fit(folder, ckpt_path="last"), 0


def try_at(number, folder, expected):
    """`"ended"`, or how it went wrong. By the handler that was there before, the signal ends the process at once."""
    folder.mkdir()
    what, code = in_copy(strike_at, number, folder)
    if (what, code) == ("", 0):
        return "none came"  # the run has a line less now and then
    if code != -signal.SIGTERM and (what, code) != ("", 143):
        return f"code {code}: {what}"
    weights, code = in_copy(go_on, folder)
    return "ended" if (weights, code) == (expected, 0) else f"goes on otherwise: {what}, {code}, {weights}"


@pytest.mark.slow  # the quick tests of signals stand in test_interruption_signals.py
def test_no_signal_is_lost(tmp_path):
    fit(tmp_path / "first")  # imports, caches
    strike = Strike()
    expected = strike.run(fit, tmp_path / "whole")
    dice, outcomes = random.Random(7), collections.Counter()
    of_core = sorted(name for name in strike.lines if f"{os.sep}core{os.sep}" in name)
    for trial in range(int(os.environ.get("CORE_TEST_SIGNALS", "14"))):
        number = dice.choice(strike.lines[dice.choice(of_core)])
        outcomes[try_at(number, tmp_path / str(trial), expected)] += 1
    assert set(outcomes) <= {"ended", "none came"}
    assert outcomes["ended"] >= 8
