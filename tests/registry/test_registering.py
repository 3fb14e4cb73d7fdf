"""Plugins that a process registers: beside what is installed, never in its place."""

import pytest

from core.contract.errors import (
    AliasConflictError,
    ConfigurationError,
    PluginLoadError,
    UnknownAliasError,
)
from core.contract.logger import Logger
from core.contract.strategy import Strategy
from core.registry import StrategyRegistry
from support.fake_distributions import make_distribution
from support.hostile import LOOK_ALIKES


class Mine(Logger):
    """Writes to the wall.

    With a brush.
    """

    def log_metrics(self, metrics, step): ...


class Theirs(Mine): ...


def test_register_get_remove(registry):
    loggers = registry()
    loggers.register("My-Logger", Mine)
    assert loggers.get("my_logger") is Mine
    assert loggers.get("<in-process>:my-logger") is Mine
    assert isinstance(loggers.create("MY_LOGGER"), Mine)
    assert "my_logger" in loggers.available_strategies()
    spec = loggers.spec("my_logger")
    assert (spec.provider, spec.summary) == ("<in-process>", "Writes to the wall.")
    assert spec.target == f"{Mine.__module__}:Mine"
    loggers.remove("my-logger")
    assert "my_logger" not in loggers
    with pytest.raises(UnknownAliasError):
        loggers.remove("my_logger")


def test_as_a_decorator(registry):
    loggers = registry()

    @loggers.register("local", description="of this function")
    class Local(Mine): ...

    assert Local is loggers.get("local")
    assert loggers.spec("local").summary == "of this function"
    assert loggers.spec("local").target.endswith("test_as_a_decorator.<locals>.Local")


def test_one_that_raises_is_mended_in_the_program(registry):
    loggers = registry()
    loggers.register("mine", lambda: 1 / 0)
    with pytest.raises(
        PluginLoadError,
        match=r"division by zero\. This program has registered it: mend it there\.$",
    ):
        loggers.create("mine")


def test_the_signature_that_users_know(site, manager):
    class Custom(Strategy): ...

    made = manager()
    strategies = StrategyRegistry("strategy", lambda: made)
    strategies.register(name="custom", strategy_class=Custom, description="mine")
    assert strategies.get("custom") is Custom
    assert "custom" in strategies.available_strategies()
    strategies.remove("custom")


def test_options_make_a_preset(site, manager):
    class Custom(Strategy):
        """Trains slowly,
        but well.

        At night.
        """

        def __init__(self, speed=1, **parts):
            super().__init__(**parts)
            self.speed = speed

    made = manager()
    strategies = StrategyRegistry("strategy", lambda: made)
    strategies.register("custom_fast", Custom, description="mine", speed=9)
    strategies.register("custom_slow", speed=0)(Custom)
    assert [strategies.create(name).speed for name in ("custom_fast", "custom_slow")] == [9, 0]
    assert strategies.create("custom_fast", speed=5).speed == 5
    assert strategies["custom_slow"] is strategies.get("custom_slow")
    assert [
        offer.spec.summary for offer in strategies.offers() if "custom" in offer.spec.alias
    ] == [
        "mine",
        "Trains slowly, but well.",
    ]
    with pytest.raises(UnknownAliasError, match="Unknown strategy 'costum'"):
        strategies["costum"]


def test_a_registration_is_not_replaced_in_silence(registry):
    loggers = registry()
    loggers.register("mine", Mine)
    with pytest.raises(AliasConflictError) as raised:
        loggers.register("MINE", Theirs)
    assert str(raised.value) == (
        f"The logger 'mine' is registered already, as {Mine.__module__}:Mine. "
        "Register under another alias, remove that one first, or pass override=True."
    )
    assert loggers.get("mine") is Mine
    loggers.register("mine", Theirs, override=True)
    assert loggers.get("mine") is Theirs


def test_nor_when_its_alias_is_blocked(site, registry, monkeypatch):
    monkeypatch.setenv("CORE_DISABLE_PLUGINS", "mine")
    with pytest.warns(UserWarning, match="'mine'"):
        loggers = registry()
    loggers.register("mine", Mine)
    with pytest.raises(AliasConflictError):
        loggers.register("mine", Theirs)


@pytest.mark.parametrize("override", [False, True])
def test_a_built_in_is_never_replaced(registry, override):
    loggers = registry()
    with pytest.raises(
        AliasConflictError,
        match=r"The logger 'csv' belongs to core-base .*, and a registration can't",
    ):
        loggers.register("csv", Mine, override=override)
    assert loggers.spec("csv").provider == "core-base"


@pytest.mark.parametrize("override", [False, True])
def test_an_installed_plugin_is_never_replaced(site, registry, override):
    make_distribution(
        site, "core-acme", entry_points_text="[core.loggers]\nacme = core_acme:Acme\n"
    )
    with pytest.raises(AliasConflictError, match=r"belongs to core-acme 1.0"):
        registry().register("acme", Mine, override=override)


def test_a_word_of_the_arguments_is_no_alias(registry):
    with pytest.raises(
        AliasConflictError, match="The word 'auto' asks core to choose; no logger can take it"
    ):
        registry().register("auto", Mine)


@pytest.mark.parametrize("name", ["", " ", "a b", "a:b", "a,b", *LOOK_ALIKES])
def test_an_alias_that_nobody_could_write(registry, name):
    with pytest.raises(
        ConfigurationError, match="can't be the alias of a logger: expected ASCII"
    ) as raised:
        registry().register(name, Mine)
    assert LOOK_ALIKES.get(name, "got") in str(raised.value)


@pytest.mark.parametrize(
    ("target", "got"), [(int, "the class int"), (Mine(), "of type Mine"), (3, "3 of type int")]
)
def test_a_target_of_another_type(registry, target, got):
    with pytest.raises(
        ConfigurationError,
        match=f"'mine' can't be registered: expected a subclass of .*; got .*{got}",
    ):
        registry().register("mine", target)


def test_only_registrations_can_be_removed(site, registry):
    make_distribution(
        site, "core-acme", entry_points_text="[core.loggers]\nacme = core_acme:Acme\n"
    )
    loggers = registry()
    with pytest.raises(ConfigurationError) as raised:
        loggers.remove("acme")
    assert str(raised.value) == (
        "The logger 'acme' comes with core-acme 1.0, and only what this process has registered can "
        "be removed. CORE_DISABLE_PLUGINS=core-acme:acme leaves it out."
    )
    with pytest.raises(ConfigurationError, match="comes with core-base "):
        loggers.remove("csv")


def test_a_package_that_is_installed_later_conflicts_with_a_registration(site, manager):
    from core.registry import Registry

    made = manager()
    loggers = Registry("logger", lambda: made)
    loggers.register("acme", Mine)
    make_distribution(
        site, "core-acme", entry_points_text="[core.loggers]\nacme = core_acme:Acme\n"
    )
    made.refresh()
    with pytest.raises(AliasConflictError, match='"<in-process>:acme" or "core-acme:acme"'):
        loggers.get("acme")
    assert loggers.get("<in-process>:acme") is Mine


def test_there_is_one_registry_for_each_kind():
    from core.contract.kinds import KINDS
    from core.registry import REGISTRIES, STRATEGY_REGISTRY

    assert list(REGISTRIES) == list(KINDS)
    assert REGISTRIES["strategy"] is STRATEGY_REGISTRY
