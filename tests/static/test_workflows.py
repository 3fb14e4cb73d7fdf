"""The workflows of this repository, and those that `core new-plugin` writes: valid, and without a
known weakness.
"""

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from core_testing.cli.new_plugin import new_plugin

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["ours", "of a new plugin"])
def workflows(request, tmp_path, monkeypatch):
    if request.param == "ours":
        return ROOT / ".github" / "workflows"
    monkeypatch.chdir(tmp_path)
    new_plugin.main(["acme"], standalone_mode=False)
    return tmp_path / "core-acme" / ".github" / "workflows"


def test_workflows_follow_their_schema(workflows):
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
    ]
    done = subprocess.run(
        [*command, *sorted(workflows.glob("*.yml"))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_workflows_have_no_weakness_that_is_known(workflows):
    zizmor = next(
        path.locate() for path in distribution("zizmor").files or () if path.name == "zizmor"
    )
    done = subprocess.run(
        [zizmor, "--offline", "--quiet", workflows], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_have_no_rights_but_those_of_a_job(workflows):
    for path in workflows.glob("*.yml"):
        assert "\npermissions: {}\n" in path.read_text(encoding="utf-8"), path
