"""With the real library, offline. Each test runs a program: the library's threads live as long as
their process.
"""

import json
import os
import zipfile

import pytest

from core.contract import ConfigurationError
from core_comet import CometLogger
from support.logger_programs import run_in
from support.missing_packages import hide

QUICK = dict.fromkeys(("log_code", "log_env_details", "log_git_metadata"), False)


@pytest.fixture
def run(tmp_path):
    """Run a program in an empty folder; the lines that it prints."""
    return lambda program: run_in(
        tmp_path, f"QUICK = {QUICK!r}\n{program}", COMET_LOGGING_CONSOLE="ERROR"
    )


def read(folder):
    """Metrics, parameters and others in the archives of a folder."""
    metrics, parameters, others = set(), {}, []
    for path in sorted(folder.rglob("*.zip"), key=os.path.getmtime):
        for line in zipfile.ZipFile(path).read("messages.json").splitlines():
            row = json.loads(line)
            content = row["payload"]
            if row["type"] == "metric_msg":
                each = content["metric"]
                metrics.add((each["step"], each["metricName"], each["metricValue"]))
            elif row["type"] == "parameter_msg" and content["param"]["source"] == "manual":
                parameters[content["param"]["paramName"]] = content["param"]["paramValue"]
            elif row["type"] == "log_other":
                others.append((content["key"], content["value"]))
    return metrics, parameters, others


def test_a_trainer_hands_over_metrics_options_and_status(run, tmp_path):
    *_, version = run("""
from logged_net import Net, ON_CPU, loader
from core import Trainer
from core.loggers import CometLogger
logger = CometLogger("digits", "name", save_dir=".", offline=True, **QUICK)
trainer = Trainer(**ON_CPU, max_epochs=1, log_every_n_steps=2, logger=logger)
module = Net()
module.hparams = {"lr": 0.1, "model": {"width": 8}}
trainer.fit(module, loader(), loader())
logger.experiment.log_metric("mine", 5.0, step=9)
print(logger.version)
""")
    [archive] = tmp_path.glob("*.zip")
    metrics, parameters, others = read(tmp_path)
    assert archive.name.startswith(version)
    assert {
        (2, "batch_idx", 1.0),
        (4, "batch_idx", 3.0),
        (4, "val", 2.0),
        (9, "mine", 5.0),
    } <= metrics
    assert parameters == {"lr": 0.1, "model/width": 8}
    assert ("status", "success") in others


def test_an_experiment_that_failed_can_go_on(run, tmp_path):
    run("""
from core.loggers import CometLogger
logger = CometLogger(save_dir=".", offline=True, **QUICK)
logger.log_metrics({"loss": 1.0}, 0)
logger.finalize("failed")
logger.log_metrics({"loss": 2.0}, 1)
logger.finalize("interrupted")
""")
    metrics, _, others = read(tmp_path)
    assert {(0, "loss", 1.0), (1, "loss", 2.0)} <= metrics
    assert [value for name, value in others if name == "status"] == ["failed", "interrupted"]
    assert len({path.name.partition("-")[0] for path in tmp_path.glob("*.zip")}) == 1


def test_an_experiment_that_the_user_has_opened_is_used_and_left_open(run, tmp_path):
    *_, version = run("""
import comet_ml
from core.loggers import CometLogger
config = comet_ml.ExperimentConfig(offline_directory=".", **QUICK)
opened = comet_ml.start(online=False, project_name="other", experiment_config=config)
logger = CometLogger()
logger.log_metrics({"loss": 1.0}, 0)
logger.finalize("failed")
assert logger.experiment is opened
opened.log_metric("mine", 2.0, step=1)
assert CometLogger(experiment=opened).version == opened.get_key()
print(opened.get_key())
""")
    [archive] = tmp_path.glob("*.zip")
    assert archive.name.startswith(version)
    assert {(0, "loss", 1.0), (1, "mine", 2.0)} <= read(tmp_path)[0]


def test_nothing_is_opened_before_it_is_needed(run, tmp_path):
    run("""
from core.loggers import CometLogger
logger = CometLogger()
logger.save()
logger.finalize("success")
assert "comet_ml" not in sys.modules
""")
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_told_before_the_run(monkeypatch):
    hide(monkeypatch, "comet_ml")
    with pytest.raises(ConfigurationError, match=r"not installed: `pip install comet-ml`"):
        CometLogger()


def test_an_experiment_that_is_none():
    with pytest.raises(
        ConfigurationError,
        match=r"experiment='id': expected an experiment, as comet_ml\.start returns",
    ):
        CometLogger(experiment="id")
