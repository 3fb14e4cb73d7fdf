"""The variables by which other libraries know ranks, in processes that core's launchers make."""

import pytest

from core import Absent, Found
from core.cluster import TorchElasticEnvironment
from core.contract.rank_variables import rank_variables


@pytest.mark.parametrize(
    ("launcher", "outside"),
    [
        ("SubprocessScriptLauncher()", ["outside 0 0 2 2 0", "outside 1 1 2 2 0"]),
        ("MultiprocessingLauncher('fork')", ["outside None None None None None"]),
    ],
)
def test_each_rank_has_its_own(program, launcher, outside, monkeypatch):
    show = """
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK")

def show():
    return [os.environ.get(name) for name in NAMES]

def work(environment):
    say("rank", environment.global_rank(), *show())

if __name__ == "__main__":
    launcher = connected({launcher})
    launcher.launch(work, launcher.cluster_environment)
    launcher.launch(work, launcher.cluster_environment)
    say("outside", *show())
"""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    done = program(show.format(launcher=launcher)).finish()
    assert done.code == 0, done.errors
    ranks = ["rank 0 0 0 2 2 0", "rank 1 1 1 2 2 0"]
    assert sorted(done.output.splitlines()) == sorted([*ranks, *ranks, *outside])


@pytest.fixture
def as_in_rank_1(monkeypatch):
    for name in ("TORCHELASTIC_RUN_ID", "GROUP_RANK", "CROSS_RANK"):
        monkeypatch.delenv(name, raising=False)
    variables = rank_variables(world_size=2, global_rank=1, local_rank=1, node_rank=0, num_local=2)
    for name, value in {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("as_in_rank_1")
def test_core_takes_its_own_for_no_launcher():
    assert isinstance(TorchElasticEnvironment.detect(), Absent)


@pytest.mark.usefixtures("as_in_rank_1")
def test_a_launcher_that_a_rank_starts_is_found_by_its_own(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    assert isinstance(TorchElasticEnvironment.detect(), Found)
