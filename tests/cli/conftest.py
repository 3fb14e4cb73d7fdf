"""The fixture `core_cli`: the command `core` as a user calls it, within this process."""

import subprocess
import sys
import warnings

import pytest

from core.cli import main
from core.registry import discover, manager
from support.fake_distributions import make_distribution


@pytest.fixture
def core_cli(tmp_path, monkeypatch, capfd):
    """Runs the command in an empty folder, with fake distributions on the path, which are imported
    anew each time.
    """
    working, packages = tmp_path / "cwd", tmp_path / "site"
    working.mkdir()
    packages.mkdir()

    def call(*arguments, columns=80, **variables):
        capfd.readouterr()
        modules = set(sys.modules)
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("default")
            for name, value in {"COLUMNS": str(columns), **variables}.items():
                patch.setenv(name, value)
            patch.chdir(working)
            patch.setattr(sys, "path", [str(packages), *sys.path])
            patch.setattr(sys, "argv", ["core", *arguments])
            # the command finds what is installed, and warns of it, itself
            patch.setattr(manager, "_manager", None)
            discover(refresh=True)
            with pytest.raises(SystemExit) as ended:
                main()
        for name in {*sys.modules} - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]
        return subprocess.CompletedProcess(
            arguments, int(ended.value.code or 0), *capfd.readouterr()
        )

    call.working, call.packages = working, packages
    call.install = lambda name, entry_points="", **options: make_distribution(
        packages, name, entry_points_text=entry_points, **options
    )
    yield call
    discover(refresh=True)
