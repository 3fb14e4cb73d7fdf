"""The table of actions; and what holds for all of these profilers."""

from pathlib import Path

import pytest

from core import ConfigurationError
from core.profilers import SimpleProfiler
from core_testing import in_one_process
from support.profiled import Listener, Net, loader, make_trainer

# The same module serves fits with validation and without.
pytestmark = pytest.mark.filterwarnings("ignore:.*and no validation loader was given")


def read(path):
    """Calls, mean in ms, total in s and share of a report's table, by action."""
    lines = path.read_text().splitlines()
    cells = [line.rsplit(maxsplit=4) for line in lines if not line.startswith("---")]
    return {name: [float(cell) for cell in others] for name, *others in cells[1:]}


def test_every_part_and_hook_is_counted(tmp_path, capsys):
    trainer = make_trainer(
        tmp_path, "simple", callbacks=Listener(), log_every_n_steps=2, logger=True
    )
    trainer.fit(Net(), loader(4), loader(3))
    path = Path(trainer.log_dir) / "fit-profile.txt"
    table = read(path)
    assert {action: int(row[0]) for action, row in table.items()} == {
        "setup_strategy": 1,
        "fetch_batch": 4 + (2 + 1) + (3 + 1),
        "Net.on_train_batch_start": 4,
        "run_training_step": 4,
        "training_step": 4,
        "augment": 4,
        "backward": 4,
        "optimizer_step": 4,
        "Listener.on_train_batch_end": 4,
        "validation_step": 2 + 3,
        "log_metrics": 1,
        "the whole run": 1,
    }
    printed = capsys.readouterr().out
    assert path.read_text() in printed
    assert f"Written to {path}" in printed


def test_times_add_up(tmp_path):
    trainer = make_trainer(tmp_path, "simple")
    trainer.fit(Net(), loader())
    table = read(tmp_path / "fit-profile.txt")
    calls, mean_ms, total_s, share = table["run_training_step"]
    assert total_s == pytest.approx(calls * mean_ms / 1000, abs=0.001)
    assert share == pytest.approx(100 * calls * mean_ms / table["the whole run"][1], rel=0.05)
    totals = [row[2] for row in table.values()]
    assert totals[:-1] == sorted(totals[:-1], reverse=True)


def test_each_stage_has_a_report_of_its_own(tmp_path):
    trainer = make_trainer(tmp_path, SimpleProfiler(tmp_path / "reports", "mine"))
    module = Net()
    trainer.fit(module, loader())
    trainer.validate(module, loader(5))
    assert sorted(path.name for path in (tmp_path / "reports").iterdir()) == [
        "fit-mine.txt",
        "validate-mine.txt",
    ]
    table = read(tmp_path / "reports" / "validate-mine.txt")
    assert table["validation_step"][0] == 5
    assert "training_step" not in table


def test_an_action_may_run_within_itself():
    profiler = SimpleProfiler()

    def countdown(number):
        if number:
            with profiler.profile("countdown"):
                countdown(number - 1)

    countdown(3)
    assert profiler.summary().splitlines()[2].split()[:2] == ["countdown", "3"]


@pytest.mark.parametrize("name", ["SimpleProfiler", "AdvancedProfiler", "PyTorchProfiler"])
def test_an_action_that_never_began(name):
    import core.profilers

    expected = rf"{name}\.stop\('x'\): this action isn't running\. Call start\('x'\) before"
    with pytest.raises(ConfigurationError, match=expected):
        getattr(core.profilers, name)().stop("x")


def test_each_rank_writes_and_one_prints(tmp_path, capsys):
    def profile_on_ranks(folder):
        trainer = make_trainer(folder, "simple", devices=2, strategy="ddp", logger=True)
        trainer.fit(Net(), loader(16))
        return Path(trainer.log_dir)

    folder, _ = in_one_process(profile_on_ranks, tmp_path)
    assert {path.name for path in folder.glob("fit-profile*.txt")} == {
        "fit-profile.txt",
        "fit-profile-rank1.txt",
    }
    assert capsys.readouterr().out.count("Written to ") == 1
