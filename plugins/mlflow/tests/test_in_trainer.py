"""MLflow through a Trainer."""

from core import Trainer
from support.logged_net import ON_CPU, Net, loader


def test_mlflow_gets_metrics_options_and_status(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    trainer = Trainer(**ON_CPU, max_epochs=1, log_every_n_steps=2, default_root_dir=tmp_path, logger="mlflow")
    module = Net()
    module.hparams = {"lr": 0.1, "model": {"width": 8}}
    trainer.fit(module, loader(), loader())
    client = trainer.logger.experiment
    run = client.get_run(trainer.logger.version)
    assert (run.info.status, run.data.params) == ("FINISHED", {"lr": "0.1", "model/width": "8"})
    assert run.data.metrics == {"batch_idx": 3.0, "epoch": 0.0, "val": 2.0}
    assert trainer.log_dir == str(tmp_path / "core_logs" / run.info.run_id)
