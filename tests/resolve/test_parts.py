import contextlib
import logging
import signal
import sys
import time

import pytest
import torch

from core import Absent, ConfigurationError, DeviceError, Found, LaunchError, UnknownAliasError
from core.accelerators import CUDAAccelerator, MPSAccelerator
from core.cluster import LocalEnvironment
from core.registry import plugin_manager
from core.resolve import candidates, resolve
from core_testing.waiting import wait_until
from resolve.resolve_fakes import (
    Cluster,
    FourDevices,
    HalfPrecision,
    HereLauncher,
    ManyDevices,
    ManyProcesses,
    MemoryIO,
    decision,
)
from support.fake_distributions import make_distribution


def resolved(**arguments):
    return resolve(**{"accelerator": "cpu", **arguments}).strategy


# precision


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (None, "32-true"),
        (32, "32-true"),
        (64, "64-true"),
        ("16-true", "16-true"),
        ("bf16-true", "bf16-true"),
        ("64_True", "64-true"),
        ("bf16", "bf16-mixed"),
        ("BF16-mixed", "bf16-mixed"),
    ],
)
def test_precision_names(written, name):
    resolution = resolve(accelerator="cpu", precision=written)
    assert resolution.strategy.precision_plugin.name == name
    assert decision(resolution, "precision").choice == name


def test_a_strategy_is_asked_for_its_own_precision_by_the_usual_name(register):
    asked = []

    class Engine(ManyDevices):
        def configure_precision(self, name):
            asked.append(name)
            return HalfPrecision() if name == "16-mixed" else None

    resolution = resolve(accelerator="cpu", strategy=Engine(), precision=16)
    assert type(resolution.strategy.precision_plugin) is HalfPrecision
    assert (
        decision(resolution, "precision").reason == "precision=16 was asked for; Engine has its own"
    )
    assert resolved(strategy=Engine(), precision="bf16").precision_plugin.name == "bf16-mixed"
    assert resolved(strategy=Engine()).precision_plugin.name == "32-true"
    assert asked == ["16-mixed", "bf16-mixed", "32-true"]


def test_a_precision_instance_from_every_side():
    mine = HalfPrecision()
    assert resolved(plugins=[mine]).precision_plugin is mine
    assert resolved(precision=mine).precision_plugin is mine
    assert resolved(strategy=ManyDevices(precision_plugin=mine)).precision_plugin is mine
    assert (
        resolved(strategy=ManyDevices(precision_plugin=mine), plugins=[mine]).precision_plugin
        is mine
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"precision": "bf16-mixed", "plugins": [HalfPrecision()]},
        {"precision": "bf16-mixed", "strategy": ManyDevices(precision_plugin=HalfPrecision())},
    ],
)
def test_two_precisions_are_one_too_many(arguments):
    with pytest.raises(
        ConfigurationError,
        match=r"^Two parts of the kind 'precision' were passed: 'bf16-mixed' and HalfPrecision",
    ):
        resolved(**arguments)


def test_malformed_precisions():
    with pytest.raises(
        ConfigurationError,
        match=r"precision=HalfPrecision is a class: .*precision=HalfPrecision\(\)",
    ):
        resolved(precision=HalfPrecision)
    with pytest.raises(
        ConfigurationError, match=r"precision=16.0: expected a name such as 'bf16-mixed'"
    ):
        resolved(precision=16.0)
    with pytest.raises(UnknownAliasError, match=r"bf16-mixd.*bf16-mixed"):
        resolved(precision="bf16-mixd")
    with pytest.raises(UnknownAliasError, match="Unknown precision '8'"):
        resolved(precision=8)


# checkpoint io


def test_checkpoint_io_from_every_side():
    mine = MemoryIO()
    assert resolved(plugins=[mine]).checkpoint_io is mine
    assert resolved(plugins=mine).checkpoint_io is mine
    assert resolved(strategy=ManyDevices(checkpoint_io=mine)).checkpoint_io is mine
    assert type(resolved().checkpoint_io).__name__ == "DistributedCheckpointIO"
    assert decision(resolve(accelerator="cpu"), "checkpoint io").choice == "distributed"


def test_a_preset_keeps_its_own_parts_as_an_instance_does(register):
    """Those that are chosen before a named strategy, and those that are chosen after it."""
    brought = {
        "accelerator": FourDevices(),
        "parallel_devices": [torch.device("meta", 1), torch.device("meta", 3)],
        "cluster_environment": Cluster(),
        "checkpoint_io": MemoryIO(),
        "precision_plugin": HalfPrecision(),
    }
    register("strategy", "preset", lambda: ManyDevices(**brought))
    for strategy in ("preset", ManyDevices(**brought)):
        resolution = resolve(strategy=strategy)
        assert {name: getattr(resolution.strategy, name) for name in brought} == brought
    resolution = resolve(strategy="preset")
    assert decision(resolution, "strategy").choice == "preset"
    assert decision(resolution, "checkpoint io").reason == "this instance was passed"
    for arguments in ({"plugins": ["torch"]}, {"precision": "bf16-mixed"}):
        with pytest.raises(ConfigurationError, match="Two parts of the kind"):
            resolve(strategy="preset", **arguments)
    with pytest.raises(
        ConfigurationError, match="accelerator='cpu', but the strategy was made with FourDe"
    ):
        resolve(strategy="preset", accelerator="cpu")


def test_a_packages_default_checkpoint_io_gives_way_to_a_strategys_own(register):
    class Engine(ManyDevices):
        def configure_checkpoint_io(self):
            return engines

    engines, mine, default = MemoryIO(), MemoryIO(), MemoryIO()
    default.is_default = True
    register("strategy", "engine", Engine)
    register("strategy", "preset", lambda: ManyDevices(checkpoint_io=mine))
    assert resolved(plugins=[default]).checkpoint_io is default
    for strategy, own in (("engine", engines), (Engine(), engines), ("preset", mine)):
        assert resolved(strategy=strategy, plugins=[default]).checkpoint_io is own
    assert (
        resolved(strategy=ManyDevices(checkpoint_io=mine), plugins=[default]).checkpoint_io is mine
    )


# cluster environment


def test_a_third_party_environment_of_highest_priority(register):
    register("cluster environment", "acme", Cluster)
    resolution = resolve(accelerator="cpu")
    assert type(resolution.strategy.cluster_environment) is Cluster
    assert decision(resolution, "cluster environment").choice == "acme"
    assert decision(resolution, "launcher").choice == "in_place"
    assert decision(resolution, "launcher").reason == "acme has made the processes"


def sleeping():
    time.sleep(600)


def swallowing():
    while True:
        with contextlib.suppress(Exception):
            time.sleep(600)


@pytest.mark.parametrize(
    ("detect", "detail"),
    [
        (lambda: sys.exit(0), "SystemExit: 0. CORE_DISABLE_PLUGINS="),
        (sleeping, "TimeIsUp: it did not end within 0.2 s. CORE_DISABLE_PLUGINS="),
        (swallowing, "TimeIsUp: it did not end within 0.2 s. CORE_DISABLE_PLUGINS="),
    ],
)
def test_an_environment_that_nobody_asked_for_can_neither_end_nor_hold_up_the_run(
    register, monkeypatch, detect, detail
):
    monkeypatch.setattr(candidates, "DETECTION_TIMEOUT_S", 0.2)
    register(
        "cluster environment", "acme", type("Acme", (Cluster,), {"detect": staticmethod(detect)})
    )
    with pytest.warns(RuntimeWarning, match=f"'acme' of <in-process> was not considered. {detail}"):
        resolution = resolve(accelerator="cpu")
    assert decision(resolution, "cluster environment").choice == "local"


@pytest.fixture
def hangs(tmp_path, monkeypatch):
    """Installs a package with a cluster environment whose import tells in a file that it begins,
    and hangs.
    """

    def install(name):
        begins = (
            "import pathlib, time\nwith pathlib.Path(__file__).with_name('asked').open('a') "
            "as file: file.write('x')"
        )
        lines = f"[core.cluster_environments]\nacme = {name.replace('-', '_')}:Acme\n"
        modules = {name.replace("-", "_"): f"{begins}\ntime.sleep(600)"}
        make_distribution(tmp_path, name, "1.0", lines, modules=modules)
        monkeypatch.syspath_prepend(tmp_path)
        plugin_manager().refresh()
        return tmp_path / "asked"

    yield install
    monkeypatch.undo()
    plugin_manager().refresh()


def test_an_environment_whose_import_hangs_is_named_and_given_up(hangs, monkeypatch):
    hangs("core-hangs")
    monkeypatch.setattr(candidates, "DETECTION_TIMEOUT_S", 0.2)
    with pytest.warns(RuntimeWarning) as warned:
        assert decision(resolve(accelerator="cpu"), "cluster environment").choice == "local"
    (warning,) = warned
    assert str(warning.message) == (
        "The cluster environment 'acme' of core-hangs 1.0 was not considered. The cluster "
        "environment 'acme' of core-hangs 1.0 can't be loaded from 'core_hangs:Acme': its import "
        "raised TimeIsUp: it did not end within 0.2 s. Tell the authors of core-hangs, or leave it "
        "out with CORE_DISABLE_PLUGINS=core-hangs; `core list cluster-environments --all` shows "
        "what else is there."
    )


def test_an_environment_that_hung_is_not_asked_again(hangs, monkeypatch):
    asked = hangs("core-waits")
    monkeypatch.setattr(candidates, "DETECTION_TIMEOUT_S", 0.2)
    for text in ("it did not end within 0.2 s", "it hung before in this process"):
        with pytest.warns(RuntimeWarning, match=rf"{text}.*CORE_DISABLE_PLUGINS=core-waits"):
            assert decision(resolve(accelerator="cpu"), "cluster environment").choice == "local"
    assert asked.read_text() == "x"


def test_an_alarm_of_the_users_own_still_comes(register, monkeypatch):
    came = []
    monkeypatch.setattr(candidates, "DETECTION_TIMEOUT_S", 0.2)
    before = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        register(
            "cluster environment",
            "acme",
            type("Acme", (Cluster,), {"detect": staticmethod(sleeping)}),
        )
        with pytest.warns(RuntimeWarning, match="TimeIsUp"):
            resolve(accelerator="cpu")
        wait_until(lambda: came, "the user's alarm")
        assert signal.getsignal(signal.SIGALRM).__name__ == "<lambda>"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def two_processes_of_torchrun(monkeypatch):
    variables = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
    }
    for name, value in (
        variables | {"MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    ).items():
        monkeypatch.setenv(name, value)


def test_processes_that_exist_already_are_used(two_processes_of_torchrun, caplog):
    with caplog.at_level(logging.INFO, logger="core"):
        resolution = resolve(accelerator="cpu", strategy=ManyProcesses(), devices=2)
    assert decision(resolution, "cluster environment").choice == "torchelastic"
    assert (
        decision(resolution, "cluster environment").reason
        == "auto; it is here, and comes before local"
    )
    assert decision(resolution, "launcher").choice == "in_place"
    assert resolution.summary not in caplog.messages, "this is rank 1"
    assert len(resolved(strategy=ManyProcesses()).parallel_devices) == 2


def test_processes_that_nobody_would_use_are_an_error(two_processes_of_torchrun):
    with pytest.raises(ConfigurationError, match=r"torchrun.*2"):
        resolved(strategy="single_device", devices=1)


def test_contradictory_variables_are_not_passed_over(two_processes_of_torchrun, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ConfigurationError, match="WORLD_SIZE"):
        resolved()


def test_an_environment_that_is_passed_is_not_asked():
    mine = Cluster()
    assert resolved(plugins=[mine]).cluster_environment is mine
    assert resolved(strategy=ManyDevices(cluster_environment=mine)).cluster_environment is mine


def test_devices_auto_follows_the_processes_that_were_started():
    class Three(Cluster):
        size = 6

    resolution = resolve(
        accelerator="cpu", strategy=ManyProcesses(), num_nodes=2, plugins=[Three()]
    )
    assert len(resolution.strategy.parallel_devices) == 3
    assert (
        decision(resolution, "devices").reason
        == "auto: one for each of the 3 processes that were started on a node"
    )


def test_an_environment_that_does_not_fit_is_an_error_before_any_process():
    class Strict(Cluster):
        def validate(self, num_devices, num_nodes):
            if num_devices * num_nodes != 1:
                raise ConfigurationError(
                    f"1 process was started, and devices={num_devices}: start 2"
                )

    with pytest.raises(ConfigurationError, match="devices=2: start 2"):
        resolved(strategy=ManyProcesses(), devices=2, plugins=[Strict()])
    assert resolved(strategy=ManyDevices(), devices=2, plugins=[Strict()])


def test_two_environments_of_one_priority(register):
    register("cluster environment", "acme", Cluster)
    register("cluster environment", "zenith", type("Zenith", (Cluster,), {}))
    with pytest.raises(
        ConfigurationError,
        match=r"Several cluster environments.*plugins=\['acme'\] or plugins=\['ze",
    ):
        resolved()
    assert type(resolved(plugins=["zenith"]).cluster_environment).__name__ == "Zenith"
    register("cluster environment", "yonder", type("Yonder", (Cluster,), {}))
    message = r"priority: '(\w+)' and '(\w+)'\. Choose one: plugins=\['\1'\] or plugins=\['\2'\]\.$"
    with pytest.raises(ConfigurationError, match=message):
        resolved()


# launcher


def test_a_launcher_that_is_passed():
    mine = HereLauncher()
    assert resolved(plugins=[mine]).launcher is mine
    resolution = resolve(accelerator="cpu", plugins=[mine, Cluster()])
    assert decision(resolution, "launcher").choice == "in_place"
    assert "HereLauncher is not needed" in decision(resolution, "launcher").reason


def test_a_launcher_of_all_nodes_brings_its_environment():
    class AllNodes(HereLauncher):
        def configure_cluster_environment(self):
            return Told()

    class Told(Cluster):
        creates_processes = False

    mine, scheduled = LocalEnvironment(), Cluster()
    resolution = resolve(accelerator="cpu", plugins=[AllNodes()], num_nodes=2)
    environment = resolution.strategy.cluster_environment
    assert isinstance(environment, Told)
    assert resolution.strategy.launcher.cluster_environment is environment
    assert "has its own" in decision(resolution, "cluster environment").reason
    assert resolved(plugins=[AllNodes(), mine]).cluster_environment is mine
    assert resolved(plugins=[AllNodes(), scheduled]).cluster_environment is scheduled


@pytest.mark.parametrize("asked", ["auto", -1, 2, [0, 1]])
def test_a_launcher_counts_the_devices_of_its_nodes(asked):
    """Of which this machine may have none."""
    told = []

    class Elsewhere(HereLauncher):
        def count_devices(self, accelerator, devices, num_nodes):
            told.append((accelerator, devices, num_nodes))
            return 2

    class Nowhere(FourDevices):
        @classmethod
        def detect(cls):
            return Absent("no such card")

    nowhere = Nowhere()
    arguments = {"strategy": ManyDevices(), "accelerator": nowhere, "devices": asked}
    resolution = resolve(plugins=[Elsewhere()], **arguments)
    assert resolution.strategy.parallel_devices == [torch.device("meta", index) for index in (0, 1)]
    assert told == [(nowhere, asked, 1)]
    with pytest.raises(DeviceError, match="'nowhere' is not here: no such card"):
        resolve(plugins=[HereLauncher()], **arguments)
    with pytest.raises(DeviceError, match="'nowhere' is not here: no such card"):
        resolve(plugins=[Elsewhere(), Cluster()], **arguments)


def test_gpus_of_other_machines_are_cudas(monkeypatch):
    class Elsewhere(HereLauncher):
        def count_devices(self, accelerator, devices, num_nodes):
            return 8

    absent = classmethod(lambda cls: Absent("no such card"))
    for kind in (CUDAAccelerator, MPSAccelerator):
        monkeypatch.setattr(kind, "detect", absent)
    resolution = resolve(accelerator="gpu", plugins=[Elsewhere()], strategy=ManyDevices())
    assert resolution.strategy.parallel_devices[7] == torch.device("cuda", 7)


def test_a_launcher_that_cannot_work_here_says_so_at_once():
    class Nowhere(HereLauncher):
        def check(self):
            raise LaunchError("no processes in this sandbox: use strategy='single_device'")

    with pytest.raises(LaunchError, match="single_device"):
        resolved(plugins=[Nowhere()])


# plugins


@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        (
            [MemoryIO(), MemoryIO()],
            "plugins has two parts of the kind 'checkpoint io': MemoryIO and MemoryIO",
        ),
        (
            ["local", Cluster()],
            "plugins has two parts of the kind 'cluster environment': 'local' and Cluster",
        ),
        ([MemoryIO], r"plugins has the class MemoryIO: pass an instance, MemoryIO\(\)"),
        ([FourDevices()], "plugins has a FourDevices: pass it as accelerator="),
        ([ManyDevices()], "plugins has a ManyDevices: pass it as strategy="),
        (
            [3],
            "plugins has 3: expected instances, or registered names, of these kinds: precision, "
            "checkpoint io",
        ),
        (["torhc"], "plugins has 'torhc', which no installed package offers.*Did you mean 'torch'"),
    ],
)
def test_malformed_plugins(plugins, message):
    with pytest.raises(ConfigurationError, match=message):
        resolved(plugins=plugins)


def test_a_name_of_two_kinds_is_ambiguous(register):
    register("precision", "acme", HalfPrecision)
    register(
        "cluster environment",
        "acme",
        type("Low", (Cluster,), {"detect": classmethod(lambda cls: Found(1, -1))}),
    )
    with pytest.raises(
        ConfigurationError, match="'acme', which is a precision and a cluster environment"
    ):
        resolved(plugins=["acme"])
