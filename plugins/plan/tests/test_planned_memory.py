import csv
import json
import sys

import pytest
import torch
from click.testing import CliRunner

from core import ConfigurationError
from core.callbacks import PlannedMemory
from core.cli.commands import command
from support.tiny import Tiny, loader, make_trainer

pytestmark = pytest.mark.filterwarnings(
    r"ignore:\w+ has a validation_step\(\), and no validation loader was given"
)
PLAN = {
    "strategy": "fsdp",
    "peak_bytes": 3 * 2**20,
    "memory": {"activations": 2**21, "parameters": 2**20},
}
CHANGE = {"what": 'precision="bf16-true"', "plan": {"peak_bytes": 2**20}}


@pytest.fixture
def plans(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(
        json.dumps(
            {"plans": [PLAN | {"change": CHANGE}, {"strategy": "ddp", "failure": "refused"}]}
        )
    )
    return path


class OutOfMemory(Tiny):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

    def training_step(self, batch):
        if self.trainer.global_step:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().training_step(batch, 0)


def notes_of(tmp_path, callback):
    module = OutOfMemory()
    with pytest.raises(torch.OutOfMemoryError) as raised:
        make_trainer(tmp_path, callback, max_epochs=1, logger=True).fit(module, loader())
    size = sum(each.nbytes for each in module.parameters())
    steps = 4 * sum(1 for _ in module.parameters())  # Adam counts in a tensor for each
    return "\n".join(raised.value.__notes__), size, 2 * size + steps


def test_an_error_ends_with_what_the_rank_had_and_what_to_try(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["-c"])
    notes, parameters, optimizer = notes_of(tmp_path, PlannedMemory())
    assert f"Rank 0 had: optimizer {optimizer} B, parameters {parameters} B." in notes
    assert "`core plan PROGRAM --devices 1 --memory SIZE`" in notes


def test_a_script_is_named_with_its_arguments(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys.modules["__main__"], "__file__", str(tmp_path / "my train.py"), raising=False
    )
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "my train.py"), "--width", "4"])
    notes, _, _ = notes_of(tmp_path, PlannedMemory())
    assert (
        f"`core plan '{tmp_path}/my train.py' --devices 1 --memory SIZE -- --width 4` says" in notes
    )


def test_an_error_ends_with_the_change_that_was_planned(tmp_path, plans):
    notes, _, _ = notes_of(tmp_path, PlannedMemory(plans))
    assert "Planned for fsdp: 3.0 MiB (activations 2.0 MiB, parameters 1.0 MiB)." in notes
    assert 'By the plan it fits with precision="bf16-true": 1.0 MiB.' in notes


def test_planned_memory_is_logged_beside_the_real_peak(tmp_path, plans):
    trainer = make_trainer(
        tmp_path, PlannedMemory(plans), max_epochs=1, logger=True, log_every_n_steps=2
    )
    trainer.fit(Tiny(), loader())
    with open(f"{trainer.log_dir}/metrics.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["device/planned_bytes"]]
    assert [float(row["device/planned_bytes"]) for row in rows] == [3 * 2**20] * 2
    assert all(float(row["device/peak_resident_bytes"]) > 2**20 for row in rows)
    CliRunner().invoke(command, ["report", trainer.log_dir, "--output", str(tmp_path / "run.html")])
    assert ", planned 3.0 MiB" in (tmp_path / "run.html").read_text(encoding="utf-8")


def test_another_error_stays_as_it_is(tmp_path):
    class Fails(Tiny):
        def training_step(self, batch):
            raise RuntimeError("other")

    with pytest.raises(RuntimeError, match="other") as raised:
        make_trainer(tmp_path, PlannedMemory(), max_epochs=1).fit(Fails(), loader())
    assert not any("had:" in note for note in getattr(raised.value, "__notes__", []))


def test_a_file_without_the_plan_is_refused(tmp_path, plans):
    with pytest.raises(ConfigurationError, match="has plans for 'fsdp'"):
        PlannedMemory(plans, strategy="ddp")
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ConfigurationError, match="isn't what `core plan --json` prints"):
        PlannedMemory(tmp_path / "other.json")
