"""Read back with TensorBoard's own reader."""

import json
import threading

import pytest
import torch

from core.contract import ConfigurationError
from core_tensorboard import TensorBoardLogger
from support.missing_packages import hide

pytest.importorskip("tensorboard", reason="pip install tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2


def read(logger):
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    return events


def test_scalars_come_back(tmp_path):
    logger = TensorBoardLogger(tmp_path, "exp")
    for step in range(3):
        logger.log_metrics({"train/loss": 1 / (step + 1), "accuracy": torch.tensor(step)}, step)
    logger.save()
    events = read(logger)
    assert events.Tags()["scalars"] == ["train/loss", "accuracy"]
    assert [(event.step, event.value) for event in events.Scalars("accuracy")] == [
        (0, 0.0),
        (1, 1.0),
        (2, 2.0),
    ]
    assert events.Scalars("train/loss")[1].value == 0.5
    logger.finalize("success")


def test_hyperparameters_come_back(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    logger.log_hyperparams({"lr": 0.1, "layers": [1, 2], "name": "small"})
    logger.finalize("success")
    content = read(logger).summary_metadata["_hparams_/session_start_info"].plugin_data.content
    shown = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert (shown["lr"].number_value, shown["name"].string_value) == (0.1, "small")
    assert shown["layers"].string_value == "[1, 2]"
    assert json.loads((logger.folder() / "hparams.json").read_text())["layers"] == [1, 2]


def test_nothing_is_opened_before_it_is_needed_nor_left_open(tmp_path):
    threads = threading.active_count()
    logger = TensorBoardLogger(tmp_path)
    logger.save()
    logger.finalize("success")
    assert not list(tmp_path.iterdir())
    logger.log_metrics({"loss": 1}, 0)
    assert threading.active_count() > threads
    logger.finalize("success")
    assert threading.active_count() == threads


def test_torchs_writer_can_be_used(tmp_path):
    logger = TensorBoardLogger(tmp_path, filename_suffix=".mine")
    logger.experiment.add_text("note", "hello", 0)
    logger.finalize("success")
    assert any(entry.name.endswith(".mine") for entry in logger.folder().iterdir())
    assert read(logger).Tags()["tensors"] == ["note/text_summary"]


def test_what_is_no_number_is_named(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    with pytest.raises(ConfigurationError, match=r"The metric 'loss' is a Tensor of shape \(3,\)"):
        logger.log_metrics({"loss": torch.ones(3)}, 0)
    logger.finalize("failed")


def test_a_missing_package_is_told_before_the_run(monkeypatch, tmp_path):
    hide(monkeypatch, "tensorboard")
    with pytest.raises(ConfigurationError, match=r"not installed: `pip install tensorboard`"):
        TensorBoardLogger(tmp_path)
