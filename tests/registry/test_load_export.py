"""Names that a package adds to those of core."""

import pytest

import core
import core.callbacks
import core.profilers
from core.contract.errors import AliasConflictError, BlockedPluginError, CheckpointError
from core.registry.checkpoint_readers import reader_of
from core.registry.named_functions import load_export
from support.fake_distributions import make_distribution

TEXT = (
    "[core.exports]\ncore.callbacks.Acme = core_acme:Acme\ncore.acme_door = core_acme:acme_door\n"
)
SOURCE = {"core_acme": "class Acme: ...\ndef acme_door(): ...\n"}


def test_an_installed_package_adds_names(site, manager):
    make_distribution(site, "core-acme", entry_points_text=TEXT, modules=SOURCE)
    made = manager()
    assert load_export("core.callbacks", "Acme", made).__module__ == "core_acme"
    assert load_export("core", "acme_door", made).__module__ == "core_acme"
    with pytest.raises(AttributeError, match=r"module 'core.callbacks' has no attribute 'ACME'"):
        load_export("core.callbacks", "ACME", made)


def test_two_packages_with_one_name_are_a_conflict(site, manager):
    for name in ("core-acme", "core-bolt"):
        make_distribution(site, name, entry_points_text=TEXT, modules=SOURCE)
    with pytest.raises(AliasConflictError, match=r"by core-acme 1.0 and by core-bolt 1.0"):
        load_export("core", "acme_door", manager())


def test_a_blocked_package_adds_none(site, manager, monkeypatch):
    make_distribution(site, "core-acme", entry_points_text=TEXT, modules=SOURCE)
    monkeypatch.setenv("CORE_PLUGINS", "")
    with pytest.raises(BlockedPluginError, match="CORE_PLUGINS does not name it"):
        load_export("core", "acme_door", manager())


@pytest.mark.parametrize(
    ("name", "distribution"),
    [
        ("core.cli_for", "core-jsonargparse"),
        ("core.callbacks.MemoryCheckpoint", "core-neighbour"),
    ],
)
def test_a_name_of_a_known_package_says_what_to_install(site, manager, name, distribution):
    package, _, attribute = name.rpartition(".")
    with pytest.raises(
        ImportError, match=rf"{name} comes with {distribution}\. .*`pip install {distribution}`"
    ):
        load_export(package, attribute, manager())


@pytest.mark.parametrize("module", [core, core.callbacks, core.profilers])
def test_the_packages_that_are_open_ask_for_them(module, monkeypatch):
    monkeypatch.setattr(
        "core.registry.named_functions.load_export", lambda package, name: (package, name)
    )
    assert module.Anything == (module.__name__, "Anything")
    assert not hasattr(module, "__wrapped__")


def test_a_file_of_lightning_says_what_to_install(registry, monkeypatch):
    monkeypatch.setattr(
        "core.registry.checkpoint_readers.CHECKPOINT_READER_REGISTRY", registry("checkpoint reader")
    )
    with pytest.raises(
        CheckpointError, match=r"saved by PyTorch Lightning, .*`pip install core-lightning`"
    ):
        reader_of(b"..pytorch-lightning_version..state_dict..", "their.ckpt")
