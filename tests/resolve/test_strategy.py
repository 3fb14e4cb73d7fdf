import logging

import pytest
import torch

from core import ConfigurationError, Strategy, UnknownAliasError
from core.accelerators import CPUAccelerator
from core.registry import DEFAULT_PARALLEL_STRATEGY, known_aliases
from core.resolve import resolve
from core.strategies import SingleDeviceStrategy
from resolve.resolve_fakes import FourDevices, ManyDevices, ManyProcesses, OneDevice, decision


def test_auto_with_one_device_is_single_device():
    resolution = resolve(accelerator="cpu", devices=1)
    assert type(resolution.strategy) is SingleDeviceStrategy
    assert decision(resolution, "strategy").reason == "auto: 1 device on 1 node"


def test_auto_with_several_devices_takes_the_parallel_one(register, monkeypatch):
    register("strategy", "many", ManyProcesses)
    monkeypatch.setattr("core.resolve.strategy_choice.DEFAULT_PARALLEL_STRATEGY", "many")
    assert decision(resolve(accelerator="cpu", devices=2), "strategy").choice == "many"
    assert (
        decision(resolve(accelerator="cpu", devices=2), "strategy").reason
        == "auto: 2 devices on 1 node"
    )


def test_auto_in_a_notebook_takes_the_form_that_works_there(register, monkeypatch):
    class NeedsAFile(ManyProcesses):
        interactive_alias = "many_notebook"

    class NeedsNone(ManyProcesses):
        launcher_name = "fork"

    register("strategy", "many", NeedsAFile)
    register("strategy", "many_notebook", NeedsNone)
    monkeypatch.setattr("core.resolve.strategy_choice.DEFAULT_PARALLEL_STRATEGY", "many")
    assert decision(resolve(accelerator="cpu", devices=2), "strategy").choice == "many"
    monkeypatch.setattr("builtins.__IPYTHON__", True, raising=False)
    chosen = decision(resolve(accelerator="cpu", devices=2), "strategy")
    assert chosen.choice == "many_notebook"
    assert (
        chosen.reason
        == "auto: 2 devices on 1 node, in a notebook, which has no file for ranks to run"
    )
    assert decision(resolve(accelerator="cpu", devices=1), "strategy").choice == "single_device"


def test_auto_with_several_devices_says_what_to_install(monkeypatch):
    alias = "not_installed"
    monkeypatch.setattr("core.resolve.strategy_choice.DEFAULT_PARALLEL_STRATEGY", alias)
    monkeypatch.setattr(
        "core.resolve.strategy_choice.known_aliases", lambda kind: {alias: "core-acme"}
    )
    with pytest.raises(ConfigurationError) as caught:
        resolve(accelerator="cpu", devices=2)
    assert str(caught.value) == (
        "2 devices on 1 node and no strategy: that takes 'not_installed', which is not installed. "
        "Run `pip install core-acme`, name another strategy (see `core list-strategies`), or use "
        "devices=1."
    )
    assert known_aliases("strategy")[DEFAULT_PARALLEL_STRATEGY] == "core-ddp"


def test_auto_asks_the_accelerator_first(register):
    class Choosing(FourDevices):
        name = "acme"

        def default_strategy(self, num_devices, num_nodes):
            return f"acme_{num_devices}_{num_nodes}"

    register("strategy", "acme_3_1", ManyDevices)
    resolution = resolve(accelerator=Choosing())
    assert decision(resolution, "strategy").choice == "acme_3_1"
    assert (
        decision(resolution, "strategy").reason
        == "auto: 3 devices on 1 node, and acme chooses this one"
    )
    with pytest.raises(UnknownAliasError, match="acme_2_1"):
        resolve(accelerator=Choosing(), devices=2)


def test_an_accelerator_maps_a_generic_alias(register):
    class Adapting(FourDevices):
        name = "acme"

        def adapt_strategy(self, alias, num_devices):
            if alias == "forked":
                raise ConfigurationError("'forked' can't work on this device: use 'acme_spawn'.")
            return {"generic": "acme_spawn"}.get(alias, alias)

    register("strategy", "acme_spawn", ManyDevices)
    resolution = resolve(accelerator=Adapting(), strategy="Generic")
    assert decision(resolution, "strategy").choice == "acme_spawn"
    assert "on acme 'generic' means this one" in decision(resolution, "strategy").reason
    with pytest.raises(ConfigurationError, match="use 'acme_spawn'"):
        resolve(accelerator=Adapting(), strategy="forked")


def test_a_class_and_other_things():
    with pytest.raises(
        ConfigurationError, match=r"strategy=ManyDevices is a class: .*strategy=ManyDevices\(\)"
    ):
        resolve(strategy=ManyDevices)
    with pytest.raises(ConfigurationError, match=r"^strategy=None: expected a name such as 'ddp'"):
        resolve(strategy=None)


def test_one_device_is_not_chosen_out_of_two_in_silence():
    with pytest.raises(
        ConfigurationError, match=r"trains on 1 device, and devices=2.* Use devices=1"
    ):
        resolve(strategy="single_device", accelerator="cpu", devices=2)


def test_a_class_that_leaves_out_super_init(register):
    class Terse(Strategy):
        def __init__(self):
            self.mine = 1

    register("strategy", "terse", Terse)
    for strategy in ("terse", Terse()):
        resolved = resolve(strategy=strategy, accelerator="cpu").strategy
        assert resolved.mine == 1
        assert resolved.root_device == torch.device("cpu")


def test_an_instance_may_be_used_again_with_other_arguments():
    strategy = ManyDevices()
    first = resolve(strategy=strategy, accelerator=OneDevice(), precision="64-true").strategy
    assert first.root_device.type == "meta"
    second = resolve(strategy=strategy, accelerator="cpu", devices=2, precision="32-true").strategy
    assert second is strategy
    assert second.root_device.type == "cpu"
    assert len(second.parallel_devices) == 2
    assert second.precision_plugin.name == "32-true"


def test_what_the_user_gave_an_instance_outlives_its_first_use():
    accelerator = FourDevices()
    strategy = ManyDevices(accelerator=accelerator, parallel_devices=[torch.device("meta", 2)])
    resolve(strategy=strategy)
    again = resolve(strategy=strategy).strategy
    assert again.accelerator is accelerator
    assert again.parallel_devices == [torch.device("meta", 2)]
    with pytest.raises(ConfigurationError, match="was made with FourDevices"):
        resolve(strategy=strategy, accelerator="cpu")


def test_an_accelerator_set_as_an_attribute_counts_as_given():
    strategy = ManyDevices()
    resolve(strategy=strategy, accelerator="cpu")
    strategy.accelerator = OneDevice()
    assert resolve(strategy=strategy).strategy.root_device.type == "meta"


def test_everything_is_connected():
    strategy = resolve(accelerator="cpu", num_nodes=1).strategy
    assert isinstance(strategy.accelerator, CPUAccelerator)
    assert strategy.launcher.cluster_environment is strategy.cluster_environment
    assert (strategy.launcher.num_processes, strategy.launcher.num_nodes) == (1, 1)
    assert strategy.checkpoint_io.layout == "sharded"


def test_the_fingerprint_names_every_choice_that_ranks_must_share():
    fingerprint = {entry[0]: entry[1:] for entry in resolve(accelerator="cpu").session.fingerprint}
    assert fingerprint.keys() == {
        *(
            "accelerator",
            "cluster environment",
            "strategy",
            "precision",
            "checkpoint io",
            "core",
            "torch",
        )
    }
    version = fingerprint["core"][2]
    assert fingerprint["strategy"] == ("single_device", "core-base", version)
    assert fingerprint["precision"] == ("32-true", "core-base", version)
    assert fingerprint["torch"][2] == torch.__version__
    instance = resolve(strategy=SingleDeviceStrategy(), accelerator="cpu").strategy
    assert dict(fingerprint) == {entry[0]: entry[1:] for entry in instance.session.fingerprint}
    own = {
        entry[0]: entry[1:]
        for entry in resolve(strategy=ManyDevices(), accelerator="cpu").session.fingerprint
    }
    assert own["strategy"] == ("resolve.resolve_fakes.ManyDevices", "", "")


def test_rank_0_logs_one_line(caplog):
    with caplog.at_level(logging.INFO, logger="core"):
        resolution = resolve(accelerator="cpu")
    lines = [
        record.message
        for record in caplog.records
        if record.message.startswith("strategy single_device (core-base ")
    ]
    assert lines == [resolution.summary]
    for part in (
        "accelerator cpu",
        "devices 1 (index 0)",
        "nodes 1",
        "precision 32-true",
        "launcher in_place",
    ):
        assert part in lines[0]
