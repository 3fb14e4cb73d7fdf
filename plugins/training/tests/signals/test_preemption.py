"""SIGTERM between any two lines of a run ends it, with a code that tells so; what was saved goes on
to the same end.

CORE_TEST_SIGNALS=1000 tries so many, in place of 14.
"""

import collections
import multiprocessing
import os
import random
import signal
import sys
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import core_training.signals
from core import Trainer
from core.callbacks import ModelCheckpoint
from support.small_nets import QUIET, Net, batches


@pytest.mark.slow  # the quick tests of signals stand in test_interruption_signals.py
def test_no_signal_is_lost(tmp_path):
    of_signals = os.path.dirname(core_training.signals.__file__) + os.sep

    class Validating(Net):
        def validation_step(self, batch):
            self.log("score", self.layer(batch).mean())

    def fit(folder, **options):
        """Two epochs of three steps, with everything that a run may have. Returns the weights."""
        torch.manual_seed(1)
        saver = ModelCheckpoint(folder / "saved", every_n_train_steps=2, save_on_exception=True)
        on = {
            "enable_checkpointing": True,
            "num_sanity_val_steps": 1,
            "default_root_dir": folder,
            "callbacks": saver,
        }
        module = Validating()
        data = torch.cat(batches(6))
        trainer = Trainer(**QUIET | on, max_epochs=2, accumulate_grad_batches=2)
        trainer.fit(module, DataLoader(data, 2, shuffle=True), DataLoader(data, 6), **options)
        return module.layer.weight.tolist()

    def go_on(folder):
        warnings.simplefilter("error")  # nothing that was saved is damaged
        assert fit(folder, ckpt_path="last") == expected

    class Strike:
        """Counts the lines that run (in core/trainer/signals the instructions), and raises SIGTERM
        before one.
        """

        def __init__(self, number=0):
            self.number, self.count = number, 0
            # their numbers, by the file that they are of
            self.lines = collections.defaultdict(list)

        def run(self, function, *args):
            sys.settrace(self._trace)
            try:
                return function(*args)
            finally:
                sys.settrace(None)

        def _trace(self, frame, event, arg):
            if event == "call" and frame.f_code.co_filename.startswith(of_signals):
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

    def strike_at(number, folder):
        handler = signal.getsignal(signal.SIGTERM)
        try:
            Strike(number).run(fit, folder)
        finally:
            assert signal.getsignal(signal.SIGTERM) is handler

    def in_copy(function, *args):
        """The code with which a forked copy of this process ends, in which a function has run.

        A signal may leave torch's modes as they were within a `with`, which only the end of a
        process undoes.
        """
        process = multiprocessing.get_context("fork").Process(target=function, args=args)
        process.start()
        process.join()
        return process.exitcode

    def try_at(number, folder):
        """By the handler that was there before, the signal ends the process at once."""
        folder.mkdir()
        code = in_copy(strike_at, number, folder)
        if code == 0:
            return "none came"  # the run has a line less now and then
        if code not in (-signal.SIGTERM, 143):
            return f"code {code}"
        code = in_copy(go_on, folder)
        return f"goes on otherwise: {code}" if code else "ended"

    fit(tmp_path / "first")  # imports, caches
    strike = Strike()
    expected = strike.run(fit, tmp_path / "whole")
    dice, outcomes = random.Random(7), collections.Counter()
    of_core = sorted(name for name in strike.lines if f"{os.sep}core{os.sep}" in name)
    for trial in range(int(os.environ.get("CORE_TEST_SIGNALS", "14"))):
        number = dice.choice(strike.lines[dice.choice(of_core)])
        outcomes[try_at(number, tmp_path / str(trial))] += 1
    assert set(outcomes) <= {"ended", "none came"}
    assert outcomes["ended"] >= 8
