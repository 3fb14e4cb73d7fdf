import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from core import ConfigurationError
from core.accelerators import CPUAccelerator
from core.callbacks import DeviceStatsMonitor, LambdaCallback, ModelCheckpoint, ThroughputMonitor
from core_training.monitors import throughput_monitor
from support.tiny import Tiny, loader, make_trainer

# The tiny module can validate; most tests here have no need to.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:\w+ has a validation_step\(\), and no validation loader was given"
)


def columns(trainer):
    """Values by name and step, of everything that was logged."""
    found = {}
    with (Path(trainer.log_dir) / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and name != "step":
                    found.setdefault(name, {})[int(row["step"])] = float(value)
    return found


def fit(root, monitor, *others, ckpt_path=None, **options):
    trainer = make_trainer(
        root,
        monitor,
        *others,
        **{"logger": True, "max_epochs": 1, "log_every_n_steps": 2, **options},
    )
    trainer.fit(Tiny(), loader(), loader(), ckpt_path=ckpt_path)
    return trainer


# device stats -------------------------------------------------------------------------------------


def test_memory_of_the_device(tmp_path):
    class Reporting(CPUAccelerator):
        def memory_stats(self, device):
            return {"used_bytes": 5.0}

    found = columns(fit(tmp_path, DeviceStatsMonitor(), accelerator=Reporting()))
    assert found["device/used_bytes"] == {2: 5.0, 4: 5.0}


def test_load_of_the_machine_once_a_step(tmp_path):
    found = columns(
        fit(
            tmp_path,
            DeviceStatsMonitor(cpu_stats=True),
            accumulate_grad_batches=2,
            log_every_n_steps=1,
        )
    )
    assert {
        "device/cpu_percent",
        "device/cpu_memory_percent",
        "device/cpu_swap_percent",
    } <= found.keys()
    assert found["device/cpu_memory_used_bytes"][2] > 0
    assert list(found["device/peak_resident_bytes"]) == [1, 2]


# throughput ---------------------------------------------------------------------------------------


def test_samples_tokens_and_flops(tmp_path):
    options = {"flops_per_batch": 100.0, "peak_flops_per_s": 1e15}
    trainer = fit(
        tmp_path, ThroughputMonitor(num_tokens_fn=lambda batch: batch[0].numel(), **options)
    )
    found = {name.removeprefix("throughput/"): values for name, values in columns(trainer).items()}
    batches_per_s = found["batches_per_s"][4]
    assert found["samples_per_s"][4] == pytest.approx(2 * batches_per_s)
    assert found["tokens_per_s"][4] == pytest.approx(4 * batches_per_s)
    assert found["flops_per_s"][4] == pytest.approx(100 * batches_per_s)
    assert found["model_flops_utilization"][4] == pytest.approx(100 * batches_per_s / 1e15)
    assert found["samples"] == {2: 4, 4: 8}
    assert found["tokens"] == {2: 8, 4: 16}
    assert trainer.callback_metrics["throughput/samples"] == 8


def test_functions_of_the_batch(tmp_path):
    monitor = ThroughputMonitor(
        batch_size_fn=lambda batch: 10, flops_per_batch=lambda batch: float(batch[0].numel())
    )
    found = columns(fit(tmp_path, monitor))
    assert found["throughput/samples"] == {2: 20, 4: 40}
    ratio = found["throughput/flops_per_s"][2] / found["throughput/batches_per_s"][2]
    assert ratio == pytest.approx(4)
    assert "throughput/tokens" not in found
    assert "throughput/model_flops_utilization" not in found


def test_the_time_of_validation_does_not_count(tmp_path, monkeypatch):
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(throughput_monitor, "time", SimpleNamespace(monotonic=lambda: clock.now_s))

    def pass_s(seconds):
        clock.now_s += seconds

    slow = LambdaCallback(
        on_train_batch_start=lambda *_: pass_s(0.5),
        on_validation_batch_end=lambda *_: pass_s(100.0),
    )
    found = columns(fit(tmp_path, ThroughputMonitor(), slow, val_check_interval=1))
    # Four batches of validation lie between the first and the second batch of training.
    assert found["throughput/batches_per_s"] == {2: 2.0, 4: 2.0}


def test_samples_go_on_counting_when_a_run_is_resumed(tmp_path):
    checkpoint = ModelCheckpoint(tmp_path / "c")
    fit(tmp_path, ThroughputMonitor(), checkpoint)
    options = {"ckpt_path": checkpoint.best_model_path, "max_epochs": 2}
    found = columns(fit(tmp_path, ThroughputMonitor(), ModelCheckpoint(tmp_path / "d"), **options))
    assert found["throughput/samples"] == {6: 12, 8: 16}


def test_a_batch_of_unknown_size(tmp_path):
    class Opaque(Tiny):
        def training_step(self, batch, batch_idx):
            return super().training_step([batch.x], batch_idx)

    trainer = make_trainer(
        tmp_path, ThroughputMonitor(), logger=True, max_epochs=1, log_every_n_steps=1
    )
    with pytest.warns(
        UserWarning, match=r"ThroughputMonitor can't tell .*SimpleNamespace.* Pass batch_size_fn="
    ) as warned:
        trainer.fit(Opaque(), [SimpleNamespace(x=torch.zeros(7, 2))] * 2)
    assert sum("ThroughputMonitor" in str(each.message) for each in warned) == 1
    assert trainer.callback_metrics["throughput/samples"] == 2


@pytest.mark.parametrize("monitor", [DeviceStatsMonitor, ThroughputMonitor])
def test_they_need_a_logger(tmp_path, monitor):
    with pytest.raises(
        ConfigurationError,
        match=rf"{monitor.__name__} has nowhere to log to: the trainer has no logger",
    ):
        fit(tmp_path, monitor(), logger=False)


@pytest.mark.parametrize(
    "options", [{"peak_flops_per_s": 1.0}, {"peak_flops_per_s": 0, "flops_per_batch": 1.0}]
)
def test_arguments_that_cannot_be(options):
    with pytest.raises(ConfigurationError, match=r"expected both, and a positive peak, or no peak"):
        ThroughputMonitor(**options)
