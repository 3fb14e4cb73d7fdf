"""One name, one plugin; and where that can't be, an error that says who, why and what to do."""

import sys

import pytest

from core.contract.errors import (
    AliasConflictError,
    BlockedPluginError,
    ConfigurationError,
    IncompatiblePluginError,
    UnknownAliasError,
)
from core.contract.kinds import KINDS
from core.contract.spec import normalize_alias
from core.registry.builtins import CORE
from core.registry.known_names import OTHER_NAMES
from core.registry.known_plugins import known_aliases
from support.fake_distributions import make_distribution

FROM_HERE = "(from this project's wheels or checkout, not from an index: README, Install)"
LOGGER = """\
from core.contract.logger import Logger

class {name}(Logger):
    def log_metrics(self, metrics, step): ...
"""


def install(
    site, name, version="1.0", alias="acme", *, group="core.loggers", requires=(), source=None
):
    module = name.replace("-", "_")
    make_distribution(
        site,
        name,
        version,
        f"[{group}]\n{alias} = {module}:Acme\n",
        requires=requires,
        modules={module: LOGGER.format(name="Acme") if source is None else source},
    )


def test_an_alias_in_any_spelling(site, registry):
    install(site, "core-acme", alias="Acme-Fast")
    loggers = registry()
    for name in (
        "acme_fast",
        "ACME-fast",
        " acme_fast ",
        "core-acme:acme_fast",
        "Core_Acme:Acme-Fast",
    ):
        assert name in loggers
        assert loggers.get(name).__module__ == "core_acme"
    assert "acme_fast" in list(loggers)
    assert loggers.spec("acme-fast").qualified_name == "core-acme:acme_fast"


def test_the_provider_that_was_used_is_logged(site, registry, caplog):
    install(site, "core-acme", "1.5")
    with caplog.at_level("DEBUG", logger="core"):
        registry().get("acme")
    assert caplog.messages == ["logger 'acme' is core_acme:Acme of core-acme 1.5"]


@pytest.mark.parametrize("first_on_the_path", ["core-acme", "core-bolt"])
def test_two_providers_of_one_alias(site, tmp_path, registry, first_on_the_path):
    second = ({"core-acme", "core-bolt"} - {first_on_the_path}).pop()
    install(site, first_on_the_path)
    install(tmp_path / "later", second)
    sys.path.append(str(tmp_path / "later"))
    loggers = registry()
    assert "acme" not in loggers
    assert "acme" not in loggers.names()
    with pytest.raises(AliasConflictError) as raised:
        loggers.get("acme")
    assert str(raised.value) == (
        "The logger 'acme' is offered by core-acme 1.0 and by core-bolt 1.0. "
        'Choose one: "core-acme:acme" or "core-bolt:acme".'
    )
    assert [spec.provider for spec in raised.value.specs] == ["core-acme", "core-bolt"]
    assert loggers.get("core-acme:acme").__module__ == "core_acme"
    assert loggers.get("core-bolt:acme").__module__ == "core_bolt"
    assert "core-bolt:acme" in loggers


@pytest.mark.parametrize("second", ["ACME", "a-cme"])
def test_one_provider_that_offers_an_alias_twice(site, registry, second):
    text = (
        f"[core.loggers]\na_cme = core_acme:One\n{second} = core_acme:Two\nacme = core_acme:Three\n"
    )
    make_distribution(site, "core-acme", entry_points_text=text)
    name = "a_cme" if second == "a-cme" else "acme"
    for form in (name, f"core-acme:{name}"):
        with pytest.raises(
            AliasConflictError, match=f"core-acme 1.0 offers the logger '{name}' more than once: "
        ):
            registry().spec(form)


def test_an_incompatible_rival_is_still_a_rival(site, registry):
    """Else the alias would change hands with the next release of core, without a word."""
    install(site, "core-acme")
    install(site, "core-bolt", requires=["core-training>=999"])
    with pytest.raises(AliasConflictError, match=r"core-acme 1.0 and by core-bolt 1.0"):
        registry().spec("acme")


# The aliases of built-ins, and of well-known plugins.


@pytest.mark.parametrize("requires", [[], ["core-training>=999"]])
def test_a_built_in_cannot_be_taken_over(site, registry, requires):
    install(site, "core-evil", alias="cpu", group="core.accelerators", requires=requires)
    accelerators = registry("accelerator")
    assert accelerators.spec("cpu").provider == CORE
    assert accelerators.spec("core-training:cpu").provider == CORE


def test_who_names_the_provider_gets_it_though_the_alias_is_reserved(site, registry):
    install(site, "core-evil", alias="csv")
    loggers = registry()
    assert loggers.spec("csv").provider == CORE
    assert loggers.get("core-evil:csv").__module__ == "core_evil"


def test_an_alias_of_ours_is_as_free_as_any(site, registry):
    install(site, "core-other", "6.6", alias="ddp", group="core.strategies")
    assert registry("strategy").spec("ddp").provider == "core-other"
    install(site, "core-ddp", alias="ddp", group="core.strategies")
    with pytest.raises(
        AliasConflictError, match='Choose one: strategy="core-ddp:ddp" or strategy="core-other:ddp"'
    ):
        registry("strategy").spec("ddp")


@pytest.mark.parametrize(("kind", "word"), [("accelerator", "gpu"), ("strategy", "auto")])
def test_words_that_name_no_plugin(site, registry, kind, word):
    group = {"accelerator": "core.accelerators", "strategy": "core.strategies"}[kind]
    with pytest.raises(UnknownAliasError, match="it names no plugin"):
        registry(kind).spec(word)
    install(site, "core-evil", alias=word, group=group)
    with pytest.raises(AliasConflictError, match=f"no {kind} can take it"):
        registry(kind).spec(word)


# Nobody offers it.


def test_a_misspelt_alias(site, registry):
    install(site, "core-acme", alias="acmeboard")
    with pytest.raises(UnknownAliasError) as raised:
        registry().get("acmebord")
    assert str(raised.value) == (
        "Unknown logger 'acmebord'. Did you mean 'acmeboard'? Installed: acmeboard, csv."
    )
    assert (raised.value.kind, raised.value.alias, raised.value.near) == (
        "logger",
        "acmebord",
        ("acmeboard",),
    )
    assert isinstance(raised.value, LookupError)


def test_a_well_known_alias_says_what_to_install(registry):
    with pytest.raises(UnknownAliasError) as raised:
        registry("strategy").get("deepspeed")
    assert str(raised.value) == (
        "Unknown strategy 'deepspeed'. It comes with core-deepspeed. "
        f"core-deepspeed is not installed: `pip install core-deepspeed` {FROM_HERE}. Installed: "
        "single_device."
    )


def test_a_well_known_package_says_what_to_install(registry):
    with pytest.raises(
        UnknownAliasError,
        match=r"'core-xla:wandb'\. core-xla is not installed: `pip install core-xla`",
    ):
        registry().get("core-xla:wandb")


def test_a_misspelt_well_known_alias_says_what_to_install(registry):
    with pytest.raises(
        UnknownAliasError,
        match=r"Did you mean 'deepspeed' \(`pip install core-deepspeed`, as README",
    ):
        registry("strategy").get("deepsped")


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("strategy", "DDPStrategy", ("ddp",)),
        ("strategy", "MeshParallelStrategy", ("parallel",)),  # whose name has little of its alias
        ("strategy", "ddp_strategy", ("ddp",)),
        ("strategy", "ZeRO-3", ("deepspeed_stage_3",)),
        ("strategy", "zero2-offload", ("deepspeed_stage_2_offload",)),
        ("logger", "CSVLogger", ("csv",)),
        ("precision", "fp16", ("16_mixed", "16_true")),
        ("strategy", "fsdp_native", ("fsdp",)),
    ],
)
def test_the_name_of_a_class_and_another_spelling_mean_an_alias(registry, kind, name, meant):
    shown = meant[0].replace("_", "-") if kind == "precision" else meant[0]
    with pytest.raises(UnknownAliasError, match=f"Did you mean '{shown}'") as raised:
        registry(kind).get(name)
    assert raised.value.near == meant


def test_a_near_precision_is_written_as_users_write_it(registry):
    with pytest.raises(UnknownAliasError, match="Did you mean 'bf16-mixed'"):
        registry("precision").get("bf16-mixd")


def test_names_of_other_libraries_lead_to_names_that_there_are():
    from core.registry.builtins import BUILTIN_ALIASES

    there = {alias for kind in KINDS for alias in known_aliases(kind)}
    there |= {alias for _, alias in BUILTIN_ALIASES}
    assert {alias for meant in OTHER_NAMES.values() for alias in meant} <= there
    assert all(name == normalize_alias(name) for name in OTHER_NAMES)


def test_a_damaged_owner_is_named_instead_of_an_install_hint(site, registry):
    make_distribution(
        site, "core-ddp", entry_points_text=b"[core.strategies]\nddp = core_ddp:\xff\n"
    )
    with pytest.raises(
        UnknownAliasError, match=r"Part of core-ddp is there, but .* can't be read: Unicode"
    ):
        registry("strategy").get("ddp")


def test_an_owner_that_is_too_old(site, registry):
    install(site, "core-ddp", "0.1", alias="ddp", group="core.strategies")
    with pytest.raises(
        UnknownAliasError, match=r"installed core-ddp 0.1 does not offer it: try `pip install"
    ):
        registry("strategy").get("ddp_fork")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("core-acme:bolt", "core-acme 1.0 offers no logger 'bolt', but: acme."),
        (
            "core-acne:acme",
            "No installed package 'core-acne' offers anything to core. Did you mean "
            "'core-acme:acme'?",
        ),
        ("core-ddp:acme", f"core-ddp is not installed: `pip install core-ddp` {FROM_HERE}."),
    ],
)
def test_a_qualified_name_that_nobody_answers_to(site, registry, name, message):
    install(site, "core-acme")
    with pytest.raises(UnknownAliasError) as raised:
        registry().get(name)
    assert str(raised.value) == f"Unknown logger '{name}'. {message}"


def test_a_name_is_a_string(registry):
    with pytest.raises(ConfigurationError, match=r"A logger is chosen by its name, a str. Got 3."):
        registry().get(3)
    assert 3 not in registry()


def test_many_aliases_are_not_all_listed(site, registry):
    lines = "\n".join(f"acme{number:02} = core_acme:Acme" for number in range(40))
    make_distribution(site, "core-acme", entry_points_text=f"[core.loggers]\n{lines}\n")
    with pytest.raises(
        UnknownAliasError, match=r"`core list loggers` shows the 41 that are installed\.$"
    ):
        registry().get("zzz")


# Offered, and yet not to be had.


@pytest.mark.parametrize(
    "requirement",
    ["core-training==0.0.*; python_version >= '3'", "core-training>>1"],
)
def test_excluded_by_its_own_requirement_and_not_imported(site, registry, requirement):
    install(
        site,
        "core-acme",
        requires=["torch", requirement],
        source="raise AssertionError('imported')",
    )
    loggers = registry()
    assert "acme" not in loggers
    with pytest.raises(IncompatiblePluginError) as raised:
        loggers.get("acme")
    assert str(raised.value).startswith("The logger 'acme' of core-acme 1.0 was not imported: it")
    assert "Try `pip install --upgrade core-acme`" in str(raised.value)
    assert "core_acme" not in sys.modules


@pytest.mark.parametrize(
    "requirement",
    [
        "core-training",
        "core-training>=0.0.1",
        "core-training>=999; python_version < '3'",
        'core-training>=999; extra == "new"',
        "core>=999",
    ],
)
def test_requirements_that_exclude_nothing(site, registry, requirement):
    install(site, "core-acme", requires=[requirement])
    assert "acme" in registry()


def test_a_development_release_counts_as_the_release_that_it_becomes(site, registry, monkeypatch):
    monkeypatch.setattr("core.registry.manager.__version__", "0.2.dev3+local")
    install(site, "core-acme", alias="newer", requires=["core-training>=0.2,<0.3"])
    install(site, "core-bolt", alias="older", requires=["core-training<0.2"])
    assert "newer" in registry()
    with pytest.raises(
        IncompatiblePluginError,
        match=r"requires core-training<0.2, and this is core-training 0.2.dev3",
    ):
        registry().spec("older")


def test_blocked(site, registry, monkeypatch):
    install(site, "core-acme", source="raise AssertionError('imported')")
    monkeypatch.setenv("CORE_DISABLE_PLUGINS", "core-acme")
    with pytest.raises(BlockedPluginError) as raised:
        registry().get("acme")
    assert str(raised.value) == (
        "The logger 'acme' is blocked: core-acme 1.0 offers it, but CORE_DISABLE_PLUGINS names "
        "'core-acme'. Change that, or choose another logger."
    )
    assert "core_acme" not in sys.modules
