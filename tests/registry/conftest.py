import contextlib
import sys
from pathlib import Path

import importlib_metadata
import packaging.requirements
import pytest

from core.registry import PluginManager, Registry, discover, plugin_manager

# imported while site-packages can be seen: the fixture below hides it
assert importlib_metadata, packaging


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An empty folder on `sys.path`, and no installed distributions besides those that a test puts
    there.

    To add a folder, append to `sys.path`: the whole list is put back afterwards.
    """
    folder = tmp_path / "site"
    folder.mkdir()
    modules = set(sys.modules)
    # made here, where it sees what is installed: it stays for the tests of other files
    plugin_manager()
    with monkeypatch.context() as patch:
        patch.setattr(
            sys,
            "path",
            [str(folder), *(entry for entry in sys.path if not holds_distributions(entry))],
        )
        patch.delenv("CORE_PLUGINS", raising=False)
        patch.delenv("CORE_DISABLE_PLUGINS", raising=False)
        yield folder
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    discover(refresh=True)


def holds_distributions(entry):
    with contextlib.suppress(OSError):
        return any(path.suffix in (".dist-info", ".egg-info") for path in Path(entry).iterdir())
    return False


@pytest.fixture
def manager(site):
    """Makes a manager that has just looked at what is installed."""

    def make():
        discover(refresh=True)
        return PluginManager()

    return make


@pytest.fixture
def registry(manager):
    """Makes a registry of its own, of loggers by default: their base class is the lightest."""

    def make(kind="logger"):
        made = manager()
        return Registry(kind, lambda: made)

    return make
