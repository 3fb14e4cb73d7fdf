import csv
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from core.contract import ConfigurationError
from core.loggers import CSVLogger
from core_testing.waiting import slowness


def rows(logger):
    with open(logger.metrics_path, newline="") as file:
        return list(csv.DictReader(file))


def test_metrics_become_rows(tmp_path):
    logger = CSVLogger(tmp_path, "exp")
    logger.log_metrics({"loss": 0.5, "accuracy": torch.tensor(0.25)}, step=1)
    logger.log_metrics({"loss": np.float32(0.125), "accuracy": 1}, step=2)
    logger.finalize("success")
    assert logger.log_dir == str(tmp_path / "exp" / "version_0")
    assert (
        tmp_path / "exp" / "version_0" / "metrics.csv"
    ).read_text() == "step,loss,accuracy\n1,0.5,0.25\n2,0.125,1.0\n"


def test_columns_grow_and_earlier_rows_stay(tmp_path):
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.log_metrics({"a, b": 2.0}, step=1)
    logger.log_metrics({"loss": float("nan")}, step=2)
    assert rows(logger) == [
        {"step": "1", "loss": "1.0", "a, b": ""},
        {"step": "1", "loss": "", "a, b": "2.0"},
        {"step": "2", "loss": "nan", "a, b": ""},
    ]
    assert [entry.name for entry in logger.folder().iterdir()] == ["metrics.csv"]


def test_rows_are_kept_until_there_are_enough(tmp_path):
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=3)
    for step in range(4):
        logger.log_metrics({"loss": step}, step)
    assert len(rows(logger)) == 3
    logger.save()
    assert len(rows(logger)) == 4
    logger.save()
    assert len(rows(logger)) == 4


def test_rows_are_not_kept_for_long(tmp_path):
    logger = CSVLogger(tmp_path, flush_interval_s=0)
    logger.log_metrics({"loss": 1}, 0)
    assert len(rows(logger)) == 1


def test_a_metric_named_step_takes_the_place_of_the_step(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"step": 0.5, "loss": 1}, step=7)
    logger.save()
    assert rows(logger) == [{"step": "0.5", "loss": "1.0"}]


def test_hyperparameters_are_json(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_hyperparams({"lr": 0.1, "layers": [1, 2], "path": tmp_path})
    text = (logger.folder() / "hparams.json").read_text()
    assert json.loads(text) == {"lr": 0.1, "layers": [1, 2], "path": str(tmp_path)}


def test_each_run_gets_the_next_version(tmp_path):
    (tmp_path / "core_logs" / "version_7").mkdir(parents=True)
    (tmp_path / "core_logs" / "version_of_my_own").mkdir()
    first, second = CSVLogger(tmp_path), CSVLogger(tmp_path)
    assert (second.version, first.version, second.version) == (8, 9, 8)
    assert CSVLogger(tmp_path, version="mine").log_dir == str(tmp_path / "core_logs" / "mine")
    assert CSVLogger(tmp_path, "", version=2).log_dir == str(tmp_path / "version_2")


def test_a_version_that_is_there_is_continued(tmp_path):
    for step, metrics in enumerate([{"loss": 1}, {"accuracy": 2}, {"loss": 3}]):
        logger = CSVLogger(tmp_path, version=0)
        logger.log_metrics(metrics, step)
        logger.finalize("interrupted")
    assert [row["loss"] for row in rows(logger)] == ["1.0", "", "3.0"]


@pytest.mark.parametrize("version", ["None", "same"])
def test_two_runs_at_once_lose_no_row(tmp_path, version):
    """They get a folder each, or share the one that both were given."""
    source = """
import sys
from core.loggers import CSVLogger
logger = CSVLogger(sys.argv[1], version=None if sys.argv[2] == "None" else sys.argv[2], flush_logs_every_n_steps=1)
sys.stdin.readline()
for step in range(50):
    logger.log_metrics({"loss": step, f"metric_{step % 5}_{sys.argv[3]}": 1}, step)
print(logger.log_dir)
"""
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", source, str(tmp_path), version, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    for run in runs:
        run.stdin.write("go\n")
        run.stdin.flush()
    folders = [run.communicate(timeout=60 * slowness())[0].strip() for run in runs]
    assert len(set(folders)) == (2 if version == "None" else 1)
    written = [row for folder in set(folders) for row in rows(CSVLogger(folder, "", version=""))]
    for name in "ab":
        own = [row for row in written if any(row.get(f"metric_{n}_{name}") for n in range(5))]
        assert [float(row["loss"]) for row in own] == list(range(50))


@pytest.mark.parametrize("value", [torch.ones(3), "text", [1.0], None])
def test_what_is_no_number_is_named(tmp_path, value):
    with pytest.raises(
        ConfigurationError, match=r"The metric 'loss' is a \w+.*Expected one number: log its mean"
    ):
        CSVLogger(tmp_path).log_metrics({"loss": value}, 0)


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"CSVLogger can't write to .*Not a directory"):
        CSVLogger(tmp_path / "file").log_hyperparams({})


def test_a_number_of_rows_that_is_none(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"flush_logs_every_n_steps=0: expected a number of rows from 1"
    ):
        CSVLogger(tmp_path, flush_logs_every_n_steps=0)
