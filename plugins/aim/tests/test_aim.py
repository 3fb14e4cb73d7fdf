"""With the real library and a repository in a folder. Each test runs a program: the library keeps
databases open.
"""

import pytest

from core.contract import ConfigurationError
from core_aim import AimLogger
from support.logger_programs import run_in
from support.missing_packages import hide

READ = """
def read(version):
    import aim
    run = aim.Run(version, repo=".", system_tracking_interval=None, capture_terminal_logs=False)
    metrics = {metric.name: [(step, value) for step, (value, _, _) in metric.data.items()] for metric in run.metrics()}
    found = run["hparams"], run["status"], run.experiment, metrics
    run.close()
    return found
"""


@pytest.fixture
def run(tmp_path):
    """Run a program in an empty folder."""
    return lambda program: run_in(tmp_path, READ + program)


def test_a_trainer_writes_metrics_options_and_status(run):
    run("""
import threading
from logged_net import Net, ON_CPU, loader
from core import Trainer
trainer = Trainer(**ON_CPU, max_epochs=1, log_every_n_steps=2, default_root_dir=".", logger="aim")
module = Net()
module.hparams = {"lr": 0.1, "model": {"width": 8, "act": sys}, "sizes": (1, 2), "none": None}
trainer.fit(module, loader(), loader())
assert threading.active_count() == 1
options, status, experiment, metrics = read(trainer.logger.version)
assert options == {"lr": 0.1, "model": {"width": 8, "act": str(sys)}, "sizes": [1, 2], "none": None}, options
assert (status, experiment) == ("success", "core_logs")
assert metrics["batch_idx"] == [(2, 1.0), (4, 3.0)], metrics
assert metrics["val"] == [(4, 2.0)]
assert trainer.log_dir.endswith(trainer.logger.version)
""")


def test_a_run_goes_on_by_its_hash(run):
    run("""
from core.loggers import AimLogger
first = AimLogger("experiment")
first.log_hyperparams({"lr": 0.1, "kept": 1})
first.log_metrics({"loss": 1}, 0)
first.finalize("success")
second = AimLogger("experiment", first.version)
second.log_hyperparams({"lr": 0.2})
second.log_metrics({"loss": 2}, 1)
second.finalize("failed")
assert read(first.version) == ({"lr": 0.2, "kept": 1}, "failed", "experiment", {"loss": [(0, 1.0), (1, 2.0)]})
""")


def test_nothing_is_opened_before_it_is_needed(run, tmp_path):
    run("""
from core.loggers import AimLogger
logger = AimLogger()
logger.save()
logger.finalize("success")
assert "aim" not in sys.modules
""")
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_told_before_the_run(monkeypatch):
    hide(monkeypatch, "aim")
    with pytest.raises(ConfigurationError, match=r"not installed: `pip install aim`"):
        AimLogger()
