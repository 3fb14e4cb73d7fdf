"""Every provider is one pluggy plugin; the environment and pluggy's own methods decide which are
there.
"""

import sys

import pytest

from core import EventHooks
from core.contract.errors import BlockedPluginError, PluginLoadError
from core.contract.hookspecs import hookimpl
from core.contract.spec import Spec
from core.registry import HOOKS, PRELUDES, Registry, load_hooks, load_prelude
from support.fake_distributions import make_distribution

OWN = ["csv"]
"""The loggers of core itself."""

BOTH = """\
[core.loggers]
acme = core_acme:Acme
bolt = core_acme:Bolt

[core.strategies]
acme = core_acme:AcmeStrategy
"""


@pytest.fixture
def acme(site):
    make_distribution(
        site, "core-acme", entry_points_text=BOTH, modules={"core_acme": "raise AssertionError"}
    )


def aliases(manager, kind="logger"):
    return Registry(kind, lambda: manager).names()


# The environment.


@pytest.mark.parametrize(
    ("blocked", "loggers", "strategies"),
    [
        ("core-acme", [], []),
        ("acme", ["bolt"], []),
        ("ACME, bolt", [], []),
        ("core-acme:bolt", ["acme"], ["acme"]),
        ("", ["acme", "bolt"], ["acme"]),
    ],
)
def test_the_block_list(acme, manager, monkeypatch, blocked, loggers, strategies):
    monkeypatch.setenv("CORE_DISABLE_PLUGINS", blocked)
    made = manager()
    assert aliases(made) == sorted([*loggers, *OWN])
    assert aliases(made, "strategy") == sorted([*strategies, "single_device"])
    assert "core_acme" not in sys.modules


@pytest.mark.parametrize(
    ("allowed", "loggers"),
    [
        ("core-acme", ["acme", "bolt"]),
        ("bolt", ["bolt"]),
        ("core_acme:acme", ["acme"]),
        ("", []),
        (" ,", []),
    ],
)
def test_the_allow_list_lets_in_built_ins_and_what_it_names(
    acme, manager, monkeypatch, allowed, loggers
):
    monkeypatch.setenv("CORE_PLUGINS", allowed)
    assert aliases(manager()) == sorted([*loggers, *OWN])
    monkeypatch.setenv("CORE_DISABLE_PLUGINS", "core-acme")
    assert aliases(manager()) == OWN, "the block list is stronger"


def test_a_built_in_can_be_blocked(manager, monkeypatch):
    monkeypatch.setenv("CORE_DISABLE_PLUGINS", "cuda")
    made = manager()
    assert aliases(made, "accelerator") == ["cpu", "mps"]
    with pytest.raises(BlockedPluginError, match="CORE_DISABLE_PLUGINS names 'cuda'"):
        Registry("accelerator", lambda: made).get("cuda")


@pytest.mark.parametrize("variable", ["CORE_PLUGINS", "CORE_DISABLE_PLUGINS"])
def test_a_name_that_matches_nothing_warns(acme, manager, monkeypatch, variable):
    monkeypatch.setenv(variable, "core-acme core-acne")
    with pytest.warns(UserWarning, match=variable) as caught:
        manager()
    (warning,) = caught
    assert str(warning.message) == (
        f"{variable} names 'core-acne', which is neither an installed plugin nor an alias of one. "
        "Did you mean 'core-acme'?"
    )


# pluggy's own methods.


def test_set_blocked_and_unblock(acme, manager):
    made = manager()
    made.set_blocked("core-acme")
    assert aliases(made) == OWN
    with pytest.raises(
        BlockedPluginError,
        match=r"core-acme 1.0 offers it, but the plugin manager blocks core-acme",
    ):
        Registry("logger", lambda: made).get("acme")
    assert made.unblock("core-acme")
    made.refresh()
    assert "acme" in aliases(made)


def test_a_refresh_reads_packages_and_environment_again(acme, manager, monkeypatch, site):
    monkeypatch.setenv("CORE_DISABLE_PLUGINS", "core-acme")
    made = manager()
    made.set_blocked("core-bolt")
    make_distribution(site, "core-bolt", entry_points_text="[core.loggers]\nb = core_bolt:B\n")
    make_distribution(site, "core-late", entry_points_text="[core.loggers]\nlate = core_late:L\n")
    monkeypatch.delenv("CORE_DISABLE_PLUGINS")
    made.refresh()
    assert aliases(made) == sorted(["acme", "bolt", "late", *OWN])
    assert made.is_blocked("core-bolt")


def test_a_plugin_written_in_code(manager):
    class Plugin:
        @hookimpl
        def core_loggers(self):
            yield Spec("logger", "In-Code", "json:JSONEncoder", "core-code")

    made = manager()
    made.register(Plugin(), name="core-code")
    assert "in_code" in aliases(made)
    made.unregister(name="core-code")
    assert "in_code" not in aliases(made)


# A hook that raises.


def raising():
    yield Spec("logger", "half", "json:JSONEncoder", "core-bad")
    raise RuntimeError("after the first")


@pytest.mark.parametrize(
    ("offer", "detail"),
    [
        (raising, "its hook core_loggers raised RuntimeError: after the first"),
        (lambda: exit(0), "its hook core_loggers raised SystemExit: 0"),
        (lambda: 3, "its hook core_loggers raised TypeError: 'int' object is not iterable"),
        (
            lambda: [Spec("logger", "csv", "json:JSONEncoder", "core")],
            "its hook core_loggers raised ValueError: expected kind 'logger' and provider "
            "'core-bad', got 'logger' and 'core'",
        ),
        (
            lambda: [Spec("logger", "\u0430cme", "json:JSONEncoder", "core-bad")],
            "its hook core_loggers raised ValueError: the alias '\u0430cme': expected ASCII "
            "letters, digits, '_', '-', "
            r"'.' and '+'; got '\u0430'",
        ),
    ],
)
def test_a_hook_that_raises_is_attributed_and_harms_nobody(acme, manager, offer, detail):
    class Plugin:
        @hookimpl
        def core_loggers(self):
            return offer()

    made = manager()
    made.register(Plugin(), name="core-bad")
    assert aliases(made) == ["acme", "bolt", *OWN]
    assert [(problem.source, problem.detail) for problem in made.problems] == [("core-bad", detail)]


# Event hooks.

HOOKS_TEXT = "[core.hooks]\nacme = core_acme_hooks\n"
HOOKS_SOURCE = """\
from core.contract.hookspecs import hookimpl

@hookimpl
def on_fit_start(trainer): ...
"""


def hooks(site, source=HOOKS_SOURCE, **options):
    make_distribution(
        site,
        "core-acme",
        entry_points_text=HOOKS_TEXT,
        modules={"core_acme_hooks": source},
        **options,
    )


def test_event_hooks_are_listed_and_loaded_only_when_named(site, manager):
    hooks(site)
    made = manager()
    assert [offer.spec.qualified_name for offer in made.offers(HOOKS)] == ["core-acme:acme"]
    assert "core_acme_hooks" not in sys.modules
    assert load_hooks("acme", EventHooks, made) is sys.modules["core_acme_hooks"]
    assert load_hooks("core-acme:acme", EventHooks, made) is sys.modules["core_acme_hooks"]


def test_preludes_are_listed_and_loaded_only_when_named(site, manager):
    text = "[core.preludes]\nacme = core_acme_prelude:begin\nnone = core_acme_prelude:nothing\n"
    source = "nothing = 1\ndef begin():\n    return 'begun'\n"
    make_distribution(
        site, "core-acme", entry_points_text=text, modules={"core_acme_prelude": source}
    )
    made = manager()
    offered = ["core-acme:acme", "core-acme:none"]
    assert [
        each.spec.qualified_name
        for each in made.offers(PRELUDES)
        if each.spec.provider == "core-acme"
    ] == offered
    assert made.offers(HOOKS) == ()
    assert "core_acme_prelude" not in sys.modules
    assert load_prelude("acme", made)() == "begun"
    with pytest.raises(PluginLoadError, match="expected a function without arguments; got 1"):
        load_prelude("none", made)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "nothing in it is marked with `core.hookimpl`"),
        (HOOKS_SOURCE.replace("fit", "fti"), "unknown hook 'on_fti_start'"),
        (HOOKS_SOURCE.replace("trainer", "coach"), "{'coach'} are declared in the hookimpl but"),
        ("1 / 0", "its import raised ZeroDivisionError"),
    ],
)
def test_event_hooks_that_are_none(site, manager, source, reason):
    hooks(site, source)
    with pytest.raises(PluginLoadError) as raised:
        load_hooks("acme", EventHooks, manager())
    assert reason in " ".join(str(raised.value).split())
