"""core-ray where Ray isn't installed: options, errors, and how the parts are found."""

import os
import signal
import socket
import sys
import threading
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

pytest.importorskip(
    "core_ray", reason="core-ray isn't installed here: `tox run -e ray`, or -e plugins/ray"
)

from core import Absent, ConfigurationError, DeviceError, LaunchError, PluginLoadError, Trainer
from core.accelerators import CPUAccelerator, CUDAAccelerator
from core.cluster import LocalEnvironment
from core.launch import WorkerFailure
from core_ddp import DDPStrategy
from core_ray import (
    LostWorkerError,
    RayEnvironment,
    RayLauncher,
    RayTrainPreemption,
    cluster,
    library,
)
from core_ray.ranks import RankActors
from core_ray.worker import Ending, Place
from support.tiny import Tiny, loader

OFF = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
QUIET = dict.fromkeys(OFF, False)
TRAIN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "NODE_RANK": "0",
}
TRAIN |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "ACCELERATE_TORCH_DEVICE": "cpu"}


def on_cpus(*plugins, devices=2, **options):
    """A Trainer of DDP with a launcher."""
    return Trainer(
        accelerator="cpu", devices=devices, strategy="ddp", plugins=[*plugins], **options, **QUIET
    )


def on_gpus(launcher, devices, **options):
    """A Trainer on GPUs that are the cluster's."""
    strategy = DDPStrategy(process_group_backend="gloo")
    return Trainer(
        strategy=strategy,
        accelerator=NoGPUHere(),
        devices=devices,
        plugins=[launcher],
        **options,
        **QUIET,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"placement_strategy": "SPREAD_OUT"}, "expected one of 'STRICT_SPREAD', 'SPREAD'"),
        ({"address": "ray://10.0.0.1:10001"}, "Ray's client"),
        ({"max_failures": -1}, "a number of restarts from 0"),
        ({"placement_timeout_s": 0}, "seconds above 0"),
        ({"resources_per_worker": {"CPU": 0}}, "amounts above 0"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        RayLauncher(**options)


def test_what_is_missing_is_an_error_before_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        PluginLoadError, match=r"needs the package ray(?s:.*)pip install 'ray>=2\.60'"
    ):
        on_cpus(RayLauncher(), num_nodes=2)


def test_preemption_is_asked_for_in_ray_train_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    options = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "limit_val_batches": 0} | QUIET
    trainer = Trainer(callbacks=[RayTrainPreemption()], **options)
    trainer.fit(Tiny(), loader())
    assert trainer.global_step == 4
    with pytest.raises(ConfigurationError, match=r"every_s=0\): expected seconds above 0"):
        RayTrainPreemption(every_s=0)


def test_inside_ray_train_nothing_is_launched(monkeypatch):
    for name, value in TRAIN.items():
        monkeypatch.setenv(name, value)
    trainer = on_cpus(RayLauncher())
    assert type(trainer.strategy.cluster_environment).__name__ == "RayTrainEnvironment"
    assert type(trainer.strategy.launcher).__name__ == "InPlaceLauncher"
    with pytest.raises(
        ConfigurationError,
        match="Ray Train started 2 workers, but devices=3 and num_nodes=1 ask for 3",
    ):
        on_cpus(devices=3)


def test_several_machines_need_a_cluster(monkeypatch):
    if not find_spec("ray"):
        monkeypatch.setattr(
            library, "load", lambda module="ray": type("Ray", (), {"is_initialized": lambda: False})
        )
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(Exception, match="num_nodes=2 needs a Ray cluster of as many machines"):
        on_cpus(RayLauncher(), devices=1, num_nodes=2)


def test_the_environment_is_the_launchers_unless_one_is_passed(monkeypatch):
    monkeypatch.setattr(
        library, "load", lambda module="ray": type("Ray", (), {"is_initialized": lambda: True})
    )
    trainer = on_cpus(RayLauncher(), num_nodes=2)
    assert isinstance(trainer.strategy.cluster_environment, RayEnvironment)
    assert trainer.strategy.launcher.cluster_environment is trainer.strategy.cluster_environment
    mine = LocalEnvironment()
    trainer = on_cpus(RayLauncher(), mine)
    assert trainer.strategy.cluster_environment is mine


def test_an_environment_knows_no_port_before_there_is_a_rank():
    environment = RayEnvironment()
    assert (environment.world_size(), environment.global_rank(), environment.main_address) == (
        1,
        0,
        "127.0.0.1",
    )
    with pytest.raises(ConfigurationError, match="in Ray's workers only"):
        _ = environment.main_port


def test_nodes_are_on_machines_of_their_own_unless_it_is_said():
    """Ray's SPREAD may put two of them on one."""
    assert RayLauncher().placement_strategy == "STRICT_SPREAD"


class NoGPUHere(CUDAAccelerator):
    """GPUs that this machine has none of."""

    @classmethod
    def detect(cls):
        return Absent("the driver counts no GPU")


@pytest.fixture
def with_nodes(monkeypatch):
    """A connection to a cluster whose nodes have so many GPUs."""

    def connect(*gpus):
        nodes = [
            {"Alive": True, "Resources": {"CPU": 8, **({"GPU": number} if number else {})}}
            for number in gpus
        ]
        nodes.append({"Alive": False, "Resources": {"GPU": 16}})
        fake = SimpleNamespace(is_initialized=lambda: True, nodes=lambda: nodes)
        monkeypatch.setattr(library, "load", lambda module="ray": fake)

    return connect


@pytest.mark.parametrize(
    ("devices", "num_nodes", "found"),
    [(2, 1, 2), (16, 2, 16), ("auto", 1, 8), ("auto", 2, 4), (-1, 2, 4)],
)
def test_gpus_are_the_clusters(with_nodes, devices, num_nodes, found):
    """A head node has none, and nodes that start when they are asked for aren't known yet."""
    with_nodes(0, 4, 8)
    launcher = RayLauncher(resources_per_worker={"CPU": 3})
    trainer = on_gpus(launcher, devices, num_nodes=num_nodes)
    assert [str(device) for device in trainer.strategy.parallel_devices] == [
        f"cuda:{n}" for n in range(found)
    ]
    options = launcher._actor_options()
    assert (options["num_cpus"], options["num_gpus"]) == (3, 1)


@pytest.mark.parametrize(
    ("devices", "num_nodes", "message"),
    [
        ("auto", 3, r"num_nodes=3 machines, and those of the Ray cluster have 8, 4, 0 GPUs"),
        (-1, 4, r"num_nodes=4 machines, and those of the Ray cluster have 8, 4, 0 GPUs"),
        ([0, 1], 1, r"devices=\[0, 1\]: Ray chooses GPUs for the ranks. Say how many: devices=2"),
    ],
)
def test_gpus_that_no_machine_has_are_refused(with_nodes, devices, num_nodes, message):
    with_nodes(0, 4, 8)
    with pytest.raises(DeviceError, match=message):
        RayLauncher().count_devices(NoGPUHere(), devices, num_nodes)


def test_one_process_may_take_all_gpus_of_its_node(with_nodes):
    with_nodes(0, 4)
    launcher = RayLauncher()
    assert launcher.count_devices(NoGPUHere(), 4, 1) == 4
    launcher.connect(cluster_environment=None, num_processes=1, num_nodes=1)
    assert launcher._actor_options()["num_gpus"] == 4


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({"use_gpu": False}, 0),
        ({"use_gpu": True}, 1),
        ({"resources_per_worker": {"GPU": 0.5}}, 0.5),
    ],
)
def test_the_user_may_count_gpus_otherwise(with_nodes, options, number):
    with_nodes(4)
    launcher = RayLauncher(**options)
    on_gpus(launcher, 2)
    assert launcher._actor_options()["num_gpus"] == number


def test_a_cpu_takes_no_gpus(with_nodes):
    with_nodes(4)
    launcher = RayLauncher()
    launcher.count_devices(NoGPUHere(), 2, 1)
    assert launcher.count_devices(CPUAccelerator(), 2, 1) is None
    assert launcher._actor_options()["num_gpus"] == 0
    with pytest.raises(ConfigurationError, match=r"use_gpu=True takes GPUs.* on accelerator 'cpu'"):
        on_cpus(RayLauncher(use_gpu=True))


def test_a_local_cluster_has_the_gpus_of_this_machine(monkeypatch):
    fake = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setattr(library, "load", lambda module="ray": fake)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(DeviceError, match=r"but there are 0 here; the driver counts no GPU"):
        RayLauncher().count_devices(NoGPUHere(), 1, 1)
    assert RayLauncher("auto").count_devices(NoGPUHere(), 1, 1) == 1


def test_a_slow_start_is_an_error_of_ours(monkeypatch):
    """Ray raises a bare Exception where a node isn't there after its fixed 30 s
    (`ray/_private/node.py`).
    """

    def init(**options):
        raise Exception("The current node timed out during startup.")

    fake = SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None)
    monkeypatch.setattr(library, "load", lambda module="ray": fake)
    with (
        pytest.raises(
            LaunchError, match=r"No Ray cluster can be used at 'local': The current node timed out"
        ),
        cluster.connected("local", [], {}),
    ):
        pass


@pytest.mark.parametrize("named", ["{}", "auto"])
def test_a_cluster_that_is_gone_is_not_waited_for(monkeypatch, named):
    """Ray's `init` asks for minutes, and answers no signal meanwhile."""

    def init(**options):
        raise AssertionError("a dead cluster was waited for")

    with socket.socket() as taken:  # bound, and listening to nobody
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        fake = SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None)
        fake.get_ray_address_from_environment = lambda asked, folder: address
        monkeypatch.setattr(library, "load", lambda module="ray": fake)
        with (
            pytest.raises(
                LaunchError, match=r"No Ray cluster can be used at '.*refused\. Start one"
            ),
            cluster.connected(named.format(address), [], {}),
        ):
            pass


@pytest.fixture
def hung(monkeypatch):
    """The socket of a head that takes connections and answers none; Ray would wait for it."""

    def init(**options):
        raise AssertionError("a hung cluster was waited for")

    fake = SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None)
    monkeypatch.setattr(library, "load", lambda module="ray": fake)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_cluster_that_hangs_is_not_waited_for(monkeypatch, hung):
    monkeypatch.setattr(cluster, "_ANSWERS_S", 0.2)
    with (
        pytest.raises(
            LaunchError, match=r"what listens there has not answered within 0\.2 s\. Start one"
        ),
        cluster.connected(f"127.0.0.1:{hung.getsockname()[1]}", [], {}),
    ):
        pass


def test_a_signal_ends_the_wait_for_a_cluster_that_hangs(monkeypatch, hung):
    """At once: it comes while the program waits for the answer to what it has sent."""

    def end(number, frame):
        raise SystemExit(128 + number)

    def interrupt():
        with hung.accept()[0] as connection:
            if connection.recv(1):
                os.kill(os.getpid(), signal.SIGTERM)
            ended.wait()

    monkeypatch.setattr(cluster, "_ANSWERS_S", 100)
    ended, before = threading.Event(), signal.signal(signal.SIGTERM, end)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with (
            pytest.raises(SystemExit, match="143"),
            cluster.connected(f"127.0.0.1:{hung.getsockname()[1]}", [], {}),
        ):
            pass
    finally:
        signal.signal(signal.SIGTERM, before)
        ended.set()
        thread.join()


def test_the_cause_is_named_though_its_echo_comes_first(monkeypatch):
    """Answers of Ray's actors come in either order, which a cluster can't be told."""
    echo = Ending(1, report=WorkerFailure.of(RuntimeError("[gloo] Connection closed by peer")))

    class Gone(Exception):
        """Ray's error of an actor whose process is gone."""

    def get(answer):
        if answer == "of rank 1":
            raise Gone("The actor died unexpectedly")
        return echo

    errors = SimpleNamespace(RayError=Gone, RayTaskError=KeyError)
    fake = SimpleNamespace(
        wait=lambda answers, **_: (answers[:1], answers[1:]), get=get, exceptions=errors
    )
    monkeypatch.setattr(library, "load", lambda module="ray": fake)
    ranks = RankActors(num_processes=1)
    ranks._places, ranks._addresses = (
        [Place("a", 10, (), 1), Place("b", 11, (), 2)],
        {"a": "10.0.0.1", "b": "10.0.0.2"},
    )
    failure = ranks._watch({"of rank 0": 0, "of rank 1": 1})
    assert (type(failure), failure.rank) == (LostWorkerError, 1)
    assert "Rank 1 (node 1, 10.0.0.2, pid 11) was lost" in str(failure)
