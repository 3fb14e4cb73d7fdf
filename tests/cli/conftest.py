import os
import subprocess
import sys

import pytest

from fake_distributions import make_distribution


@pytest.fixture
def core_cli(tmp_path):
    """Runs the command in a process of its own, in an empty folder, with fake distributions on the path."""
    working = tmp_path / "cwd"
    working.mkdir()
    packages = tmp_path / "site"
    packages.mkdir()

    def run(*arguments, columns=80, **variables):
        path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": path, "COLUMNS": str(columns)} | variables
        return subprocess.run(
            [sys.executable, "-m", "core", *arguments],
            cwd=working,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    run.working = working
    run.packages = packages
    run.install = lambda name, entry_points="", **options: make_distribution(
        packages, name, entry_points_text=entry_points, **options
    )
    return run
