"""A loop of one's own logs, and nobody tells the logger that it is over."""

import csv
import sys

import pytest

from core_testing import programs
from core_testing.waiting import slowness


@pytest.mark.parametrize(
    ("devices", "strategy", "how"),
    [(1, "auto", "fails"), (2, "ddp", "ends"), (2, "ddp_fork", "fails")],
)
def test_all_values_are_written(tmp_path, devices, strategy, how):
    source = """
import sys
from core import Fabric
from core.loggers import CSVLogger

def train(fabric):
    for step in range(3):
        fabric.log("loss", step / 2, step)
    if sys.argv[2] == "fails":
        raise RuntimeError("mine")

if __name__ == "__main__":
    fabric = Fabric(accelerator="cpu", devices=int(sys.argv[3]), strategy=sys.argv[4], loggers=CSVLogger(sys.argv[1]))
    fabric.launch(train)
"""
    program = tmp_path / "program.py"
    program.write_text(source)
    done = programs.run(
        [sys.executable, program, tmp_path, how, devices, strategy], timeout=120 * slowness()
    )
    assert (done.returncode == 0) == (how == "ends"), done.stderr
    with open(tmp_path / "core_logs" / "version_0" / "metrics.csv", newline="") as file:
        assert [row["loss"] for row in csv.DictReader(file)] == ["0.0", "0.5", "1.0"]
    assert [path.name for path in (tmp_path / "core_logs").iterdir()] == ["version_0"]
