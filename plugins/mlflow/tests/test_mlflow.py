"""With the real library and its local file store."""

import os
import pickle
import subprocess
import sys
import threading

import pytest
import torch

from core.contract import ConfigurationError
from core_mlflow import MLFlowLogger
from support.missing_packages import hide


@pytest.fixture
def store(tmp_path, monkeypatch):
    """URI of an empty file store."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def history(logger, name):
    found = logger.experiment.get_metric_history(logger.version, name)
    return sorted((metric.step, metric.value) for metric in found)


def test_metrics_options_and_status_come_back(store, tmp_path):
    logger = MLFlowLogger("experiment", "name", store, save_dir=tmp_path, tags={"team": "a"})
    logger.log_hyperparams({"lr": 0.1, "model": {"width": 8, "act@": None}})
    for step in range(3):
        logger.log_metrics({"val/loss": 1 / (step + 1), "acc@5": torch.tensor(step)}, step * 10)
    logger.finalize("success")
    assert history(logger, "val/loss") == [(0, 1.0), (10, 0.5), (20, 1 / 3)]
    assert history(logger, "acc_5") == [(0, 0.0), (10, 1.0), (20, 2.0)]
    run = logger.experiment.get_run(logger.version)
    assert run.data.params == {"lr": "0.1", "model/width": "8", "model/act_": "None"}
    assert (run.info.run_name, run.info.status, run.data.tags["team"]) == ("name", "FINISHED", "a")
    assert logger.experiment.get_experiment(run.info.experiment_id).name == "experiment"
    assert logger.log_dir == str(tmp_path / "experiment" / logger.version)


def test_more_values_than_one_request_may_have(store):
    logger = MLFlowLogger(tracking_uri=store)
    for step in range(3):
        logger.log_metrics({f"metric_{number}": number for number in range(700)}, step)
    logger.log_hyperparams({f"option_{number}": number for number in range(250)})
    logger.save()
    assert history(logger, "metric_699") == [(0, 699.0), (1, 699.0), (2, 699.0)]
    assert len(logger.experiment.get_run(logger.version).data.params) == 250


def test_no_thread_is_left(store):
    """With another thread in the process, no worker can be forked."""
    threads = threading.active_count()
    logger = MLFlowLogger(tracking_uri=store, flush_interval_s=0)
    for step in range(20):
        logger.log_metrics({"loss": step}, step)
    assert threading.active_count() > threads
    logger.finalize("success")
    assert threading.active_count() == threads
    assert len(history(logger, "loss")) == 20


def test_values_wait_for_their_batch(store):
    logger = MLFlowLogger(tracking_uri=store, flush_interval_s=3600)
    logger.log_metrics({"loss": 1}, 0)
    assert history(logger, "loss") == []
    logger.save()
    assert history(logger, "loss") == [(0, 1.0)]


def test_nothing_is_opened_before_it_is_needed(store, tmp_path):
    logger = MLFlowLogger(tracking_uri=store)
    logger.finalize("success")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("status", "shown"), [("failed", "FAILED"), ("interrupted", "KILLED")])
def test_a_run_that_failed_says_so_and_can_go_on(store, status, shown):
    logger = MLFlowLogger(tracking_uri=store)
    logger.log_metrics({"loss": 1}, 0)
    logger.finalize(status)
    assert logger.experiment.get_run(logger.version).info.status == shown
    logger.log_metrics({"loss": 2}, 1)
    logger.finalize("success")
    assert history(logger, "loss") == [(0, 1.0), (1, 2.0)]
    assert logger.experiment.get_run(logger.version).info.status == "FINISHED"


def test_two_runs_share_an_experiment_and_a_copy_its_run(store):
    first, second = MLFlowLogger(tracking_uri=store), MLFlowLogger(tracking_uri=store)
    first.log_metrics({"loss": 1}, 0)
    assert first.version != second.version
    copied = pickle.loads(pickle.dumps(first))
    copied.log_metrics({"loss": 2}, 1)
    copied.save()
    first.save()
    assert history(first, "loss") == [(0, 1.0), (1, 2.0)]
    [experiment] = first.experiment.search_experiments(filter_string="name = 'core_logs'")
    assert {
        run.info.run_id for run in first.experiment.search_runs([experiment.experiment_id])
    } == {
        first.version,
        second.version,
    }


def test_a_run_is_continued_by_its_id(store):
    first = MLFlowLogger(tracking_uri=store)
    first.log_metrics({"loss": 1}, 0)
    first.finalize("interrupted")
    second = MLFlowLogger(tracking_uri=store, version=first.version)
    second.log_metrics({"loss": 2}, 1)
    second.finalize("success")
    assert history(first, "loss") == [(0, 1.0), (1, 2.0)]


def test_what_went_wrong_on_the_way_is_told(store):
    logger = MLFlowLogger(tracking_uri=store, version="0" * 32)
    logger.log_metrics({"loss": 1}, 0)
    with pytest.raises(Exception, match=r"0{32}.*not found"):
        logger.save()


def test_a_place_that_mlflow_does_not_know(store):
    logger = MLFlowLogger(tracking_uri="carrier-pigeon://home")
    with pytest.raises(
        ConfigurationError, match=r"MLflow can't use the tracking URI 'carrier-pigeon://home'"
    ):
        logger.log_hyperparams({"lr": 0.1})


def test_what_is_no_number_is_named(store):
    with pytest.raises(ConfigurationError, match=r"The metric 'loss' is a Tensor of shape \(3,\)"):
        MLFlowLogger(tracking_uri=store).log_metrics({"loss": torch.ones(3)}, 0)


def test_a_missing_package_is_told_before_the_run(monkeypatch):
    hide(monkeypatch, "mlflow")
    with pytest.raises(ConfigurationError, match=r"not installed: `pip install mlflow-skinny`"):
        MLFlowLogger()


def test_making_a_logger_imports_nothing():
    program = (
        "import sys; from core.loggers import MLFlowLogger; MLFlowLogger(); print('mlflow' "
        "in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "False"
