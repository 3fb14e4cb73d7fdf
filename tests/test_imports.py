"""What an import brings: the public names, neither torch nor a plugin, and no library that a plugin
is named after.
"""

import contextlib
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.pathlib import CouldNotResolvePathError, resolve_pkg_root_and_module_name

from core import __version__

ROOT = Path(__file__).parents[1]


ROOMS = ("averaging", "callbacks", "finetuning", "monitors", "predictions", "tuning")
FACES = {
    "callbacks": [f"core_training.{room}" for room in ROOMS],
    "profilers": ["core_training.profilers"],
    "trainer": ["core_training"],
}
"""The modules of core that show what core-training has, and where that is."""


@pytest.mark.parametrize("name", FACES)
def test_the_trainers_public_modules_export_what_belongs_to_it(name):
    module = importlib.import_module(f"core.{name}")
    homes = [importlib.import_module(home) for home in FACES[name]]
    own = {public: getattr(home, public) for home in homes for public in home.__all__}
    not_shown = {"LearningRateCurve", "Tuner"}
    assert {*module.__all__} == own.keys() - not_shown
    assert {*dir(module)} == {*module.__all__}
    assert all(getattr(module, public) is own[public] for public in module.__all__)
    with pytest.raises(AttributeError, match=f"module 'core.{name}' has no attribute 'Missing'"):
        _ = module.Missing


def test_a_trainer_of_another_release_is_named():
    program = "import core; core.__version__ = '9.9'; from core import Trainer"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert f"and core-base 9.9 is installed: `pip install core-base=={__version__}`." in done.stderr


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("core/*/__init__.py")), ids=lambda path: path.parent.name
)
def test_every_public_name_can_be_imported(path):
    package = importlib.import_module(f"core.{path.parent.name}")
    public = getattr(package, "__all__", [])
    assert [name for name in public if not hasattr(package, name)] == []
    with pytest.raises(
        AttributeError, match=f"module 'core.{path.parent.name}' has no attribute '_missing'"
    ):
        _ = package._missing


def test_subpackages_are_attributes_from_the_first_line_on():
    """All public ones, each imported when it is first asked for; to list them imports no torch."""
    program = """
import pkgutil, sys, core

private = {"__main__", "_version", "lazy_exports", "namesakes"}
names = {module.name for module in pkgutil.iter_modules(core.__path__)} - private
print(sorted(names - set(dir(core))), "torch" in sys.modules)
print([name for name in names if getattr(core, name).__name__ != f"core.{name}"], core.callbacks.EarlyStopping.__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[] False", "[] EarlyStopping"]


@pytest.mark.parametrize("name", ["core", "core.contract", "core.registry", "core.session"])
def test_import_leaves_torch_and_plugins_alone(name):
    """The package and, but for the root, every module of it that has work before there are
    tensors.
    """
    plugins = sorted(path.parent.name for path in ROOT.glob("plugins/*/core_*/__init__.py"))
    # Imported once ranks are compared, or a module is compiled.
    with_torch = ["core.session.digests", "core.session.divergence", "core.session.equal_masks"]
    program = f"""
import importlib, pkgutil, sys

package = importlib.import_module({name!r})
if {name!r} != "core":
    for module in pkgutil.walk_packages(package.__path__, {name!r} + "."):
        if module.name not in {with_torch!r}:
            importlib.import_module(module.name)
print(*(heavy for heavy in {["torch", *plugins]!r} if heavy in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_to_name_a_plugins_test_imports_no_library_of_that_name(tmp_path, monkeypatch):
    (tmp_path / "horovod.py").write_text("raise AssertionError('was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "horovod", raising=False)
    path = ROOT / "plugins" / "horovod" / "tests" / "test_conformance.py"
    with contextlib.suppress(CouldNotResolvePathError):
        resolve_pkg_root_and_module_name(path, consider_namespace_packages=True)
