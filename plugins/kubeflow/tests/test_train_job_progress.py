import pickle
import warnings

import pytest
from status_server_here import running

from core import ConfigurationError
from core.callbacks import TrainJobProgress
from core_kubeflow import StatusServer
from core_testing import in_one_process
from support.tiny import Tiny, loader, make_trainer


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server over TLS, which the variables of this process name."""
    (tmp_path / "trainer").mkdir()
    with running(tmp_path / "trainer") as server:
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", server.url)
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_CA_CERT", str(tmp_path / "trainer" / "ca.crt"))
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", str(tmp_path / "trainer" / "token"))
        yield server


class Patient(Tiny):
    """Waits in each step for the answer to what was sent."""

    def on_train_batch_start(self, batch, batch_idx):
        (progress,) = [
            each for each in self.trainer.callbacks if isinstance(each, TrainJobProgress)
        ]
        progress._sent.exception(timeout=20)


def fit(tmp_path, module=None, every_s=1e-6, **options):
    options = {"max_epochs": 2, "limit_val_batches": 0} | options
    trainer = make_trainer(tmp_path, TrainJobProgress(every_s=every_s), **options)
    trainer.fit(module or Tiny(), loader())
    return trainer


def percentages(server):
    return [status.get("progressPercentage") for status in server.statuses]


def test_progress_and_metrics_reach_the_server(tmp_path, server):
    trainer = fit(tmp_path, Patient())
    assert percentages(server) == [0, 12, 25, 37, 50, 62, 75, 87, 99, 100]
    first, *_, last = server.statuses
    assert "estimatedRemainingSeconds" not in first
    assert last["estimatedRemainingSeconds"] == 0
    assert all(0 <= status["estimatedRemainingSeconds"] < 100 for status in server.statuses[1:])
    (metric,) = last["metrics"]
    assert metric["name"] == "train_loss"
    assert float(metric["value"]) == pytest.approx(
        float(trainer.callback_metrics["train_loss"]), rel=1e-5
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_epochs": -1, "max_steps": 4}, [0, 25, 50, 75, 99, 100]),
        ({"max_epochs": 1, "accumulate_grad_batches": 2}, [0, 0, 50, 50, 99, 100]),
    ],
    ids=["steps", "windows"],
)
def test_the_nearest_limit_counts(tmp_path, server, options, expected):
    fit(tmp_path, Patient(), **options)
    assert percentages(server) == expected


class Stops(Patient):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.trainer.should_stop = batch_idx == 2


def test_a_run_without_a_limit_has_no_percentage(tmp_path, server):
    fit(tmp_path, Stops(), max_epochs=-1)
    assert percentages(server) == [None, None, None, None, 100]
    assert "estimatedRemainingSeconds" not in server.statuses[1]


def test_time_is_a_limit(tmp_path, server):
    fit(tmp_path, Stops(), max_epochs=-1, max_time={"hours": 100})
    assert percentages(server) == [0, 0, 0, 0, 100]
    assert server.statuses[2]["estimatedRemainingSeconds"] == pytest.approx(360_000, rel=0.01)


def test_nothing_is_reported_elsewhere(tmp_path, server, monkeypatch):
    monkeypatch.delenv("KUBEFLOW_TRAINER_SERVER_URL")
    fit(tmp_path)
    assert server.statuses == []


def test_a_renewed_token_is_read(tmp_path, server):
    class Renews(Patient):
        def on_train_epoch_end(self):
            server.token = "a newer one"
            (tmp_path / "trainer" / "token").write_text(server.token)

    fit(tmp_path, Renews(), every_s=1000, max_epochs=1)
    assert percentages(server) == [0, 100]


def test_a_refusal_is_one_warning(tmp_path, server):
    server.token = "another"
    with pytest.warns(
        UserWarning, match=r"isn't reported, and training goes on.*HTTP 403 Forbidden: Forbidden"
    ) as told:
        trainer = fit(tmp_path)
    assert trainer.global_step == 8
    assert len(told) == 1


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("URL", "https://127.0.0.1:1/status", "Connection refused"),
        ("URL", "{url}/other", "HTTP 404 Not Found: Not found"),
        ("CA_CERT", "", "certificate verify failed"),
        ("TOKEN", "nowhere", "No such file"),
    ],
)
def test_a_server_that_cannot_be_used_ends_no_run(
    tmp_path, server, monkeypatch, variable, value, message
):
    monkeypatch.setenv(f"KUBEFLOW_TRAINER_SERVER_{variable}", value.format(url=server.url))
    with pytest.warns(UserWarning, match=message) as told:
        fit(tmp_path)
    assert (len(told), server.statuses) == (1, [])


def test_training_does_not_wait_for_answers(tmp_path, server):
    class Goes(Tiny):
        def on_train_epoch_end(self):
            server.may_answer.set()

    server.may_answer.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(tmp_path, Goes(), max_epochs=1)
    assert percentages(server) == [0, 100]


def test_a_run_that_fails_stays_where_it_was(tmp_path, server):
    class Fails(Patient):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            if batch_idx == 2:
                raise OSError("no more data")

    with pytest.raises(OSError, match="no more data"):
        fit(tmp_path, Fails(), max_epochs=1)
    assert percentages(server)[-1] == 75


def test_what_the_server_takes_of_metrics(server):
    metrics = {"": 1.0, "x" * 100: float("nan"), **{f"m{number}": 1e300 for number in range(300)}}
    StatusServer.from_environment().post(2.0, 1e12, metrics)
    (status,) = server.statuses
    assert len(status["metrics"]) == 256
    assert status["metrics"][:2] == [
        {"name": "x" * 64, "value": "nan"},
        {"name": "m0", "value": "1e+300"},
    ]
    assert (status["progressPercentage"], status["estimatedRemainingSeconds"]) == (100, 2**31 - 1)


def test_a_wrong_interval_is_refused():
    with pytest.raises(ConfigurationError, match=r"every_s=0\): expected seconds above 0"):
        TrainJobProgress(every_s=0)


def test_rank_zero_reports(tmp_path, server):
    options = {"every_s": 1000, "max_epochs": 1, "devices": 2, "strategy": "ddp"}
    in_one_process(lambda: fit(tmp_path, **options))
    assert percentages(server) == [0, 100]


def test_a_used_callback_can_be_sent_to_workers(tmp_path, server):
    trainer = fit(tmp_path)
    (callback,) = [each for each in trainer.callbacks if isinstance(each, TrainJobProgress)]
    assert pickle.loads(pickle.dumps(callback)).every_s == callback.every_s
