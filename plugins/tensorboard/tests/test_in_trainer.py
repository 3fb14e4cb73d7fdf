"""TensorBoard through a Trainer."""

import pytest

from core import Trainer
from core_tensorboard import TensorBoardLogger
from support.logged_net import ON_CPU, Net, loader

pytest.importorskip("tensorboard", reason="pip install tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def test_it_is_chosen_by_its_alias(tmp_path):
    trainer = Trainer(**ON_CPU, max_epochs=1, log_every_n_steps=2, default_root_dir=tmp_path, logger="tensorboard")
    trainer.fit(Net(), loader(), loader())
    assert isinstance(trainer.logger, TensorBoardLogger)
    events = EventAccumulator(trainer.log_dir)
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("batch_idx")] == [(2, 1.0), (4, 3.0)]
