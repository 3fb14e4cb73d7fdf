import pytest

from core import ConfigurationError
from core.profilers import AdvancedProfiler
from support.profiled import Listener, Net, Trouble, loader, make_trainer

# The same module serves fits with validation and without.
pytestmark = pytest.mark.filterwarnings("ignore:.*and no validation loader was given")


def tables(path):
    """The text of each action's table."""
    parts = path.read_text().split("Action ")[1:]
    return {part.split("\n", 1)[0]: part for part in parts}


def test_each_action_shows_its_functions(tmp_path, capsys):
    trainer = make_trainer(tmp_path, "advanced", callbacks=Listener())
    trainer.fit(Net(), loader())
    found = tables(tmp_path / "fit-profile.txt")
    assert "(training_step)" in found["training_step"]
    assert "run_backward" in found["backward"]
    assert "(optimizer_step)" in found["optimizer_step"]
    assert "(on_train_batch_end)" in found["Listener.on_train_batch_end"]
    assert "{built-in method builtins.next}" in found["fetch_batch"]
    printed = capsys.readouterr().out
    assert (
        printed == f"Profiles of {len(found)} actions. Written to {tmp_path / 'fit-profile.txt'}\n"
    )


def test_what_runs_within_is_in_the_inner_table_alone(tmp_path):
    profiler = AdvancedProfiler(tmp_path)

    def work():
        pass

    def inner():
        work()

    profiler.setup("fit", tmp_path, 0)
    outer_work = profiler.wrap("outer", lambda: (profiler.wrap("inner", inner)(), outer_only()))

    def outer_only():
        pass

    outer_work()
    profiler.teardown()
    found = tables(tmp_path / "fit-profile.txt")
    assert "(work)" in found["inner"]
    assert "(work)" not in found["outer"]
    assert "(outer_only)" in found["outer"]


def test_the_longest_functions_are_shown(tmp_path):
    trainer = make_trainer(tmp_path, AdvancedProfiler(num_lines=2))
    trainer.fit(Net(), loader())
    table = tables(tmp_path / "fit-profile.txt")["run_training_step"]
    assert "due to restriction <2>" in table
    assert len(table.rstrip().splitlines()[-3:]) == 3


def test_a_run_that_fails_leaves_pythons_profiler_off(tmp_path):
    trainer = make_trainer(tmp_path, "advanced", callbacks=Trouble())
    with pytest.raises(RuntimeError, match="mine"):
        trainer.fit(Net(), loader())
    assert "(training_step)" in tables(tmp_path / "fit-profile.txt")["training_step"]
    again = AdvancedProfiler(tmp_path, "again")
    again.setup("fit", tmp_path, 0)
    with again.profile("x"):  # Python refuses a second profiler while one is on
        sorted([])
    again.teardown()
    assert "sorted" in (tmp_path / "fit-again.txt").read_text()


def test_a_number_of_lines_that_is_none():
    with pytest.raises(
        ConfigurationError, match=r"num_lines=0: expected a number of functions from 1"
    ):
        AdvancedProfiler(num_lines=0)
