"""A user's environment: the wheels, their metadata and nothing of the checkout."""

import importlib
import os
import sys
import sysconfig
import tomllib
import zipfile
from email.parser import BytesParser
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from core._version import DISTRIBUTION, TRAINING

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))
# tox has environments of their own for plugins that bring large libraries.
INSTALLED = {each.name for each in distributions()}
PLUGINS = [name for name in (f"core-{each}" for each in FOLDERS) if name in INSTALLED]
PACKAGES = {DISTRIBUTION: "core"} | {name: name.replace("-", "_") for name in PLUGINS}
# tox alone installs them, outside the checkout
WHEELS = PACKAGES if "TOX_ENV_DIR" in os.environ else {}


@pytest.mark.parametrize("package", WHEELS.values())
def test_tests_run_on_the_installed_wheel(package):
    module = importlib.import_module(package)
    site_packages = Path(sysconfig.get_path("purelib")).resolve()
    assert Path(sys.prefix).resolve() == Path(os.environ["TOX_ENV_DIR"]).resolve()
    assert site_packages in Path(module.__file__).resolve().parents


@pytest.mark.parametrize(("name", "package"), PACKAGES.items())
def test_version_comes_from_one_place(name, package):
    version = importlib.import_module(f"{package}._version").__version__
    assert distribution(name).version == version


def test_the_name_comes_from_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = [
        line
        for lines in project["optional-dependencies"].values()
        for line in lines
        if line.startswith("core")
    ]
    assert {project["name"], *(Requirement(line).name for line in own)} == {DISTRIBUTION}
    assert project["import-names"] == ["core", "core_base"]


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_bounds_the_core_on_both_sides(name):
    requirements = [Requirement(line) for line in distribution(name).requires]
    core = next(each for each in requirements if each.name in (DISTRIBUTION, TRAINING))
    assert Version(distribution(DISTRIBUTION).version) in core.specifier
    assert "9999" not in core.specifier


@pytest.mark.parametrize("name", PLUGINS)
def test_every_entry_point_names_a_public_attribute(name):
    entry_points = distribution(name).entry_points
    assert entry_points or name == TRAINING  # imported by its name
    for entry_point in entry_points:
        assert callable(entry_point.load()), entry_point
        assert entry_point.attr in importlib.import_module(entry_point.module).__all__


def test_ddp_has_a_preset_for_each_way_to_launch():
    methods = {"ddp": None, "ddp_spawn": "spawn", "ddp_fork": "fork", "ddp_notebook": "fork"}
    launches = {
        name: {"start_method": method} if method else {} for name, method in methods.items()
    }
    suffixes = {
        f"_find_unused_parameters_{str(each).lower()}": {"find_unused_parameters": each}
        for each in (True, False)
    }
    found = {
        each.name: getattr(each.load(), "keywords", {})
        for each in distribution("core-ddp").entry_points
    }
    assert found == launches | {
        launch + suffix: launches[launch] | options
        for launch in launches
        for suffix, options in suffixes.items()
    }


@pytest.mark.parametrize(("name", "package"), WHEELS.items())
def test_a_wheel_holds_its_package_and_nothing_else(name, package):
    (path,) = Path(os.environ["CORE_WHEELS"]).glob(f"{name.replace('-', '_')}-*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        (metadata,) = (member for member in names if member.endswith(".dist-info/METADATA"))
        headers = BytesParser().parsebytes(wheel.read(metadata))
    beside = {"core_base.py"} if package == "core" else set()  # where the command begins
    assert {member.split("/")[0] for member in names} == {package, metadata.split("/")[0], *beside}
    assert f"{package}/py.typed" in names
    assert headers["Name"] == name
    assert headers["License-Expression"] == "Apache-2.0"
