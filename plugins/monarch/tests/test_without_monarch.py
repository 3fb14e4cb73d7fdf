"""core-monarch where Monarch isn't installed: how the parts are found, and what is made of
answers.
"""

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip(
    "core_monarch", reason="core-monarch isn't installed here: `tox run -e monarch`"
)

from core import Absent, ConfigurationError, LaunchError, PluginLoadError, Trainer, WorkerError
from core.launch import WorkerFailure
from core_monarch import MonarchEnvironment, MonarchLauncher, library
from core_monarch.ranks import MonarchRanks
from core_monarch.worker import MonarchEnding, MonarchPlace


class Answer:
    """What a call of an actor brings."""

    def __init__(self, brings):
        self.brings = brings

    def get(self, timeout):
        if isinstance(self.brings, Exception):
            raise self.brings
        return self.brings


def failure_of(*endings):
    ranks = MonarchRanks(num_processes=len(endings))
    ranks._places = [MonarchPlace("here", 10 + rank, 1) for rank in range(len(endings))]
    return ranks._watch({rank: Answer(ending) for rank, ending in enumerate(endings)})


def test_the_cause_is_named_though_its_echo_comes_first():
    echo = MonarchEnding(
        1, report=WorkerFailure.of(RuntimeError("[gloo] Connection closed by peer"))
    )
    lost = RuntimeError(
        "all its descendants have failed:\n  the process this actor was running on failed: "
        "Killed(sig=11)"
    )
    failure = failure_of(echo, lost)
    assert (failure.rank, failure.exit_code) == (1, -11)
    assert str(failure).startswith("Rank 1 (node 0, here, pid 11) was killed by SIGSEGV")


def test_what_monarch_says_of_another_loss_is_passed_on():
    failure = failure_of(MonarchEnding(0, b""), RuntimeError("the host is gone"))
    assert type(failure) is WorkerError
    assert str(failure) == "Rank 1 (node 0, here, pid 11) was lost. Monarch says: the host is gone"


def test_what_is_missing_is_an_error_before_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "monarch.actor", None)
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    with pytest.raises(PluginLoadError, match=r"pip install 'torchmonarch>=0\.7,<0\.8'"):
        Trainer(strategy="ddp", accelerator="cpu", devices=2, plugins="monarch", **quiet)


def test_one_machine_is_one_node(monkeypatch):
    monkeypatch.setattr(library, "load", lambda module="": SimpleNamespace())
    launcher = MonarchLauncher()
    launcher.connect(cluster_environment=None, num_processes=1, num_nodes=2)
    with pytest.raises(
        LaunchError, match="num_nodes=2 needs as many hosts of Monarch, and this launcher has"
    ):
        launcher.check()


def test_the_environment_is_the_launchers():
    environment = MonarchLauncher().configure_cluster_environment()
    assert isinstance(environment, MonarchEnvironment)
    assert isinstance(environment.detect(), Absent)
    assert (environment.world_size(), environment.global_rank(), environment.main_address) == (
        1,
        0,
        "127.0.0.1",
    )
    with pytest.raises(ConfigurationError, match="known in Monarch's processes only"):
        _ = environment.main_port
    environment.set_world(world_size=4, global_rank=3, local_rank=1, node_rank=1)
    assert (environment.world_size(), environment.local_rank(), environment.node_rank()) == (
        4,
        1,
        1,
    )
