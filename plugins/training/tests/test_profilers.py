"""A profiler of one's own, none, and what is no profiler."""

import sys
from pathlib import Path

import numpy as np
import pytest

from core import ConfigurationError
from core.profilers import Profiler
from support.profiled import Listener, Net, loader, make_trainer

# The same module serves fits with validation and without.
pytestmark = pytest.mark.filterwarnings("ignore:.*and no validation loader was given")


def test_without_a_profiler_nothing_of_it_is_in_a_step(tmp_path):
    seen = set()

    class Watcher(Listener):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if batch_idx == 1:
                sys.setprofile(lambda frame, event, argument: seen.add(frame.f_code.co_filename))

        def on_train_end(self, trainer, module):
            sys.setprofile(None)

    class Quiet(Net):
        def training_step(self, batch, batch_idx):
            return self.layer(batch[0]).sum()

    trainer = make_trainer(tmp_path, None, callbacks=Watcher())
    trainer.fit(Quiet(), loader())
    folders = {"/".join(Path(name).parts[-3:]) for name in seen}
    assert "core_training/loops/fit.py" in folders
    assert not [
        name
        for name in folders
        if name.endswith(("profilers/profiler.py", "core_training/loops/profiling.py"))
    ]


def test_arrays_are_measured_on_their_way(tmp_path):
    class Arrays(Net):
        def validation_step(self, batch, batch_idx):
            self.log("sum", float(batch.sum()))

    trainer = make_trainer(tmp_path, "simple")
    assert trainer.validate(Arrays(), [np.ones(2), np.ones(2)]) == [{"sum": 2.0}]


def test_sections_of_the_user_cost_nothing_to_keep(tmp_path):
    """`trainer.profile` stays in the code when there is no profiler."""
    trainer = make_trainer(tmp_path, None)
    trainer.fit(Net(), loader())
    assert trainer.global_step == 4


def test_a_profiler_of_ones_own_sees_a_step_in_order(tmp_path, capsys):
    class Recorder(Profiler):
        """The least that a profiler of one's own needs."""

        def __init__(self, folder):
            super().__init__(folder)
            self.told = []

        def start(self, action):
            self.told.append(f"+{action}")

        def stop(self, action):
            self.told.append(f"-{action}")

        def step(self):
            self.told.append("step")

        def summary(self):
            return f"{len(self.told)} events"

    mine = Recorder(tmp_path)
    trainer = make_trainer(tmp_path, mine, callbacks=Listener())
    trainer.fit(Net(), loader(2))
    first = mine.told.index("+fetch_batch")
    assert mine.told[first : mine.told.index("step") + 1] == [
        *("+fetch_batch", "-fetch_batch"),
        *("+Net.on_train_batch_start", "-Net.on_train_batch_start"),
        "+run_training_step",
        *("+training_step", "+augment", "-augment", "-training_step"),
        *("+backward", "-backward"),
        *("+optimizer_step", "-optimizer_step"),
        "-run_training_step",
        *("+Listener.on_train_batch_end", "-Listener.on_train_batch_end"),
        "step",
    ]
    assert mine.told.count("step") == 2
    assert (tmp_path / "fit-profile.txt").read_text() == f"{len(mine.told)} events\n"
    assert f"{len(mine.told)} events" in capsys.readouterr().out


def test_what_is_no_profiler(tmp_path):
    expected = (
        r"profiler='fast': expected 'simple', 'advanced', 'pytorch', an instance of "
        r"core\.profilers\.Profiler"
    )
    with pytest.raises(ConfigurationError, match=expected):
        make_trainer(tmp_path, "fast")
