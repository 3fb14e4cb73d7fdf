import json

import pytest
import torch
from torch.profiler import ProfilerAction, schedule

from core.profilers import PyTorchProfiler
from support.profiled import Listener, Net, Trouble, loader, make_trainer

# The same module serves fits with validation and without.
pytestmark = pytest.mark.filterwarnings("ignore:.*and no validation loader was given")


def ranges(path):
    """Names of a trace's events that have a duration."""
    events = json.loads(path.read_text())["traceEvents"]
    return [event["name"] for event in events if event.get("ph") == "X"]


def test_the_trace_has_steps_actions_and_operators(tmp_path, capsys):
    trainer = make_trainer(tmp_path, "pytorch", callbacks=Listener())
    trainer.fit(Net(), loader(8))
    path = tmp_path / "fit-profile-step5.pt.trace.json"
    names = ranges(path)
    assert {name for name in names if name.startswith("ProfilerStep")} == {
        f"ProfilerStep#{step}" for step in (2, 3, 4)
    }
    for action in (
        "run_training_step",
        "training_step",
        "augment",
        "backward",
        "Listener.on_train_batch_end",
    ):
        assert names.count(action) == 3, action
    assert names.count("aten::addmm") == 3
    report = (tmp_path / "fit-profile.txt").read_text()
    assert "aten::addmm" in report
    printed = capsys.readouterr().out
    assert report in printed
    assert f"Trace written to {path}" in printed


def test_a_schedule_of_ones_own_records_several_cycles(tmp_path):
    profiler = PyTorchProfiler(schedule=schedule(wait=0, warmup=1, active=1), num_rows=3)
    trainer = make_trainer(tmp_path, profiler)
    trainer.fit(Net(), loader(6))
    assert [path.name for path in profiler.trace_paths] == [
        f"fit-profile-step{step}.pt.trace.json" for step in (2, 4, 6)
    ]
    for path, step in zip(profiler.trace_paths, (1, 3, 5), strict=True):
        assert f"ProfilerStep#{step}" in ranges(path)


def test_options_go_to_torch_and_the_user_may_take_the_result(tmp_path):
    taken = []
    profiler = PyTorchProfiler(
        on_trace_ready=lambda profile: taken.append(
            profile.key_averages(group_by_input_shape=True)
        ),
        record_shapes=True,
        profile_memory=True,
    )
    make_trainer(tmp_path, profiler).fit(Net(), loader(8))
    [averages] = taken
    assert [[2, 4], [4, 1]] in [
        row.input_shapes[1:3] for row in averages if row.key == "aten::addmm"
    ]
    assert any(row.cpu_memory_usage for row in averages)
    assert [path.name for path in tmp_path.iterdir()] == ["fit-profile.txt"]


def test_a_cycle_that_the_end_cuts_short_is_written(tmp_path):
    make_trainer(tmp_path, "pytorch").fit(Net(), loader(3))
    [path] = tmp_path.glob("*.json")
    assert ranges(path).count("run_training_step") == 1


def test_a_run_too_short_to_record_says_so(tmp_path, capsys):
    make_trainer(tmp_path, "pytorch").fit(Net(), loader(1))
    assert "Nothing was recorded: the run ended after 1 steps" in capsys.readouterr().out
    assert (
        "Pass schedule=torch.profiler.schedule(...)" in (tmp_path / "fit-profile.txt").read_text()
    )
    assert not list(tmp_path.glob("*.json"))


def test_validation_within_fit_counts_no_steps_and_by_itself_it_does(tmp_path):
    profiler = PyTorchProfiler(schedule=lambda step: ProfilerAction.RECORD)
    trainer = make_trainer(tmp_path, profiler, num_sanity_val_steps=0)
    trainer.fit(Net(), loader(2), loader(4))
    names = ranges(profiler.trace_paths[0])
    assert names.count("validation_step") == 4
    assert {name for name in names if name.startswith("ProfilerStep")} == {
        f"ProfilerStep#{step}" for step in range(3)
    }
    trainer.validate(Net(), loader(4))
    names = ranges(profiler.trace_paths[0])
    assert profiler.trace_paths[0].name.startswith("validate-")
    assert "ProfilerStep#3" in names


def test_a_run_that_fails_leaves_torchs_profiler_off(tmp_path):
    profiler = PyTorchProfiler(schedule=lambda step: ProfilerAction.RECORD)
    trainer = make_trainer(tmp_path, profiler, callbacks=Trouble())
    with pytest.raises(RuntimeError, match="mine"):
        trainer.fit(Net(), loader())
    assert "training_step" in ranges(profiler.trace_paths[0])
    with torch.profiler.profile() as profile:
        torch.ones(2) + 1
    assert any(row.key == "aten::add" for row in profile.key_averages())
