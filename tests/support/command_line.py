"""The fixture `core_cli`: the command `core` as a user calls it."""

import os

import pytest

from core_testing import programs
from support.fake_distributions import make_distribution


@pytest.fixture
def core_cli(tmp_path):
    """Runs the command in a process of its own, in an empty folder, with fake distributions on the
    path.
    """
    working = tmp_path / "cwd"
    working.mkdir()
    packages = tmp_path / "site"
    packages.mkdir()

    def run(*arguments, columns=80, begin=programs.run, **variables):
        path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": path, "COLUMNS": str(columns)} | variables
        return begin([*programs.CORE, *arguments], cwd=working, env=environment, timeout=120)

    run.working = working
    run.packages = packages
    run.install = lambda name, entry_points="", **options: make_distribution(
        packages, name, entry_points_text=entry_points, **options
    )
    return run
