"""With the real library and a local database. Each test runs a program: the library has its folder
from the start.
"""

import json
import os
import sqlite3
from functools import partial

import pytest

from core.contract import ConfigurationError
from core_trackio import TrackioLogger
from support.logger_programs import run_in
from support.missing_packages import hide


@pytest.fixture
def run(tmp_path):
    """Run a program in an empty folder; the lines that it prints."""
    return partial(run_in, tmp_path, TRACKIO_DIR="database")


@pytest.fixture
def rows(tmp_path):
    def read(query, project="core_logs"):
        connection = sqlite3.connect(tmp_path / "database" / f"{project}.db")
        found = connection.execute(query).fetchall()
        connection.close()
        return found

    return read


def test_a_trainer_writes_metrics_and_options(run, rows, tmp_path):
    lines = run("""
import threading
from logged_net import Net, ON_CPU, loader
from core import Trainer
trainer = Trainer(**ON_CPU, max_epochs=1, log_every_n_steps=2, default_root_dir=".", logger="trackio")
module = Net()
module.hparams = {"lr": 0.1, "model": {"width": 8}}
trainer.fit(module, loader(), loader())
assert threading.active_count() == 1
print(trainer.logger.version, trainer.log_dir, sep="\\n")
""")
    [version, folder] = [
        line for line in lines if "rackio" not in line and not line.startswith("* ")
    ]
    assert folder == os.path.join("core_logs", version)
    values = [
        (step, name, value)
        for step, metrics in rows("SELECT step, metrics FROM metrics")
        for name, value in json.loads(metrics).items()
    ]
    assert {(2, "batch_idx", 1.0), (4, "batch_idx", 3.0), (4, "val", 2.0)} <= set(values)
    config = json.loads(rows("SELECT config FROM configs")[0][0])
    assert (config["lr"], config["model"]) == (0.1, {"width": 8})


def test_a_run_goes_on_under_its_name(run, rows):
    run("""
from core.loggers import TrackioLogger
for step in range(2):
    logger = TrackioLogger("project", "mine")
    logger.log_hyperparams({"lr": step})
    logger.log_metrics({"loss": step}, step)
    logger.finalize("success")
""")
    assert rows("SELECT DISTINCT run_name FROM metrics", "project") == [("mine",)]
    assert len(rows("SELECT DISTINCT run_id FROM metrics", "project")) == 1
    assert [
        json.loads(text)["lr"] for (text,) in rows("SELECT config FROM configs", "project")
    ] == [1]


def test_a_run_that_the_user_has_opened_is_used_and_left_open(run, rows):
    run("""
import trackio
from core.loggers import TrackioLogger
opened = trackio.init("other", "opened", embed=False)
logger = TrackioLogger(experiment=opened)
logger.log_hyperparams({"lr": 0.1})
logger.log_metrics({"loss": 1}, 0)
logger.finalize("failed")
opened.log({"mine": 2}, step=1)
assert (logger.name, logger.version) == ("other", "opened")
trackio.finish()
""")
    assert [json.loads(text) for (text,) in rows("SELECT metrics FROM metrics", "other")] == [
        {"loss": 1},
        {"mine": 2},
    ]
    assert json.loads(rows("SELECT config FROM configs", "other")[0][0])["lr"] == 0.1


def test_nothing_is_opened_before_it_is_needed(run, tmp_path):
    run("""
from core.loggers import TrackioLogger
logger = TrackioLogger()
logger.save()
logger.finalize("success")
assert "trackio" not in sys.modules
""")
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_told_before_the_run(monkeypatch):
    hide(monkeypatch, "trackio")
    with pytest.raises(ConfigurationError, match=r"not installed: `pip install trackio`"):
        TrackioLogger()


def test_an_experiment_that_is_none():
    with pytest.raises(
        ConfigurationError, match=r"experiment='id': expected a run, as trackio\.init returns it"
    ):
        TrackioLogger(experiment="id")
