import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import core
from core.cli.doctor import TESTED_TORCH, _tested
from support.fake_distributions import make_distribution


def findings_of(done):
    return {finding["subject"]: finding for finding in json.loads(done.stdout)}


def test_a_machine_in_order(core_cli):
    done = core_cli("doctor")
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("\nEverything is in order.\n")
    findings = findings_of(core_cli("doctor", "--json"))
    assert findings["torch"]["state"] == "ok"
    assert findings["torch"]["detail"].startswith(torch.__version__)
    assert findings["accelerator cpu"]["state"] == "ok"
    assert findings["gloo"]["state"] == "ok"
    assert findings["mpi"] == {
        "subject": "mpi",
        "state": "absent",
        "detail": "this torch was built without it",
    }
    assert findings["cluster local"]["state"] == "ok"
    assert findings["plugin core-base"]["state"] == "ok"


@pytest.mark.parametrize(
    ("version", "state", "begin"),
    [
        ("2.9.0", "ok", ""),
        ("2.15.1+cu128", "ok", ""),
        ("2.10.1+cu128", "note", "torch 2.10 is untested: "),
        ("2.16.0a0+git1234", "note", "torch 2.16 is untested: "),
    ],
)
def test_a_torch_that_nobody_has_tested(version, state, begin):
    finding = _tested(version)
    tested = "each run of CI tests torch 2.13, on CPUs; 2.9 and 2.15 were tested by hand"
    assert (finding.state, finding.detail) == (state, begin + tested)


def test_what_is_tested_is_what_the_environments_have(core_cli):
    root = Path(__file__).parents[2]
    environments = (root / "tox.ini").read_text(encoding="utf-8")
    pinned = [
        re.search(r"oldest: torch==(\d+\.\d+)\.", environments)[1],
        re.search(
            r"^torch==(\d+\.\d+)\.",
            (root / "constraints.txt").read_text(encoding="utf-8"),
            re.MULTILINE,
        )[1],
        re.search(r"newest: torch{env:CORE_TORCH:==(\d+\.\d+)\.", environments)[1],
    ]
    assert pinned == list(TESTED_TORCH)
    oldest = f'"torch>={TESTED_TORCH[0]}"'
    assert oldest in (root / "pyproject.toml").read_text(encoding="utf-8")
    finding = findings_of(core_cli("doctor", "--json"))["torch release"]
    assert finding["state"] == "ok"


def test_broken_things_are_named_and_counted(core_cli):
    core_cli.install(
        "core-old", "[core.strategies]\nold = core_old:S\n", requires=("core-training>=99",)
    )
    core_cli.install("core-bad", "[core.strategies]\nbad = no target\n")
    core_cli.install(
        "core-card",
        "[core.accelerators]\ncard = core_card:Card\n",
        modules={
            "core_card": """
                from core import Accelerator, Broken

                class Card(Accelerator):
                    @classmethod
                    def detect(cls):
                        return Broken("the driver does not answer")

                    def torch_devices(self, indices):
                        return []
            """
        },
    )
    exits = """
        from core import ClusterEnvironment

        class Cluster(ClusterEnvironment):
            detect = world_size = global_rank = local_rank = node_rank = main_address = main_port = exit
    """
    core_cli.install(
        "core-exits",
        "[core.cluster_environments]\nexits = exits:Cluster\n",
        modules={"exits": exits},
    )
    done = core_cli("doctor")
    assert done.returncode == 1
    last = " ".join(done.stdout.partition("\nBroken: ")[2].split())
    assert last == "accelerator card, cluster exits, strategy bad, strategy old."
    findings = findings_of(core_cli("doctor", "--json"))
    assert findings["accelerator card"]["detail"] == "the driver does not answer"
    assert findings["cluster exits"]["detail"] == "SystemExit: None"
    assert "it requires core-training>=99" in findings["strategy old"]["detail"]
    assert "its target is 'no target'" in findings["strategy bad"]["detail"]


@pytest.mark.slow
def test_damaged_metadata_that_torch_stumbles_over(core_cli):
    """torch's own look for plugins raises for a malformed file of any package."""
    core_cli.install("other", "[anything]\nmalformed\n")
    done = run_command(core_cli.packages, "--json")
    assert done.returncode == 1, done.stderr
    findings = findings_of(done)
    assert "repair what is damaged (see below)" in findings["torch"]["detail"]
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in findings["torch"]["detail"]
    assert "'malformed'" in findings["plugin other"]["detail"]
    findings = findings_of(
        run_command(core_cli.packages, "--json", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    )
    assert findings["torch"]["state"] == "ok"
    assert findings["accelerator cpu"]["state"] == "ok"


def test_the_variables_in_force(core_cli):
    findings = findings_of(
        core_cli("doctor", "--json", CORE_PLUGINS="", CORE_DISABLE_PLUGINS="mps")
    )
    assert findings["CORE_PLUGINS"]["detail"] == "'' is in force"
    assert findings["CORE_DISABLE_PLUGINS"]["detail"] == "'mps' is in force"
    assert "accelerator mps" in findings
    assert findings["accelerator mps"]["state"] == "note"


def test_the_folder_where_the_user_stands(core_cli):
    folder = core_cli.working / "core"
    folder.mkdir()
    (folder / "model.py").touch()
    findings = findings_of(core_cli("doctor", "--json"))
    assert findings["another core"]["detail"].startswith(
        f"{folder} has no __init__.py, and so hides nothing"
    )


def test_a_core_that_hides_this_one(core_cli):
    """As the console script sees it, which doesn't look into the current folder."""
    (core_cli.working / "core.py").touch()
    findings = findings_of(core_cli("doctor", "--json", PYTHONSAFEPATH="1"))
    assert "core.py hides the package" in findings["another core"]["detail"]
    assert findings["core"]["state"] == "ok"


@pytest.mark.parametrize("name", ["core", "another"])
def test_another_distribution_that_brings_a_core(core_cli, name):
    info = core_cli.install(name, version="9.9")
    if name != "core":
        (info / "RECORD").write_text("another.py,,\ncore/__init__.py,,\n")
    done = core_cli("doctor", "--json")
    assert done.returncode == 1
    finding = findings_of(done)["another core"]
    assert finding["state"] == "broken"
    assert finding["detail"].startswith(f"{name} 9.9 has the name or brings a package `core`")


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_distribution_that_has_overwritten_this_core(tmp_path, is_removed):
    """The first import of ours that runs says so: pip lets the files of two distributions mix, in
    any order.
    """
    (tmp_path / "core").mkdir()
    for path in Path(core.__file__).parent.iterdir():
        (tmp_path / "core" / path.name).symlink_to(path)
    (tmp_path / "core" / "__init__.py").unlink()
    expected = "a distribution that is gone has overwritten or removed it"
    if not is_removed:
        (tmp_path / "core" / "__init__.py").write_text("Strategy = None\n")
        info = make_distribution(tmp_path, "another", "9.9")
        (info / "RECORD").write_text("core/__init__.py,,\n")
        expected = "another 9.9 has overwritten or removed it"
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from core.strategies import "
        "SingleDeviceStrategy"
    )
    # Without site-packages, where the whole one is.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True
    )
    last = done.stderr.splitlines()[-1]
    assert f"{tmp_path}/core/__init__.py is not core-base's: {expected}" in last


@pytest.mark.parametrize("brought_by", ["another", "what brought it"])
def test_the_command_where_another_core_comes_first(tmp_path, brought_by):
    """It begins outside the package that is hidden."""
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").touch()
    if brought_by == "another":
        (make_distribution(tmp_path, "another", "9.9") / "RECORD").write_text(
            "core/__init__.py,,\n"
        )
    done = run_command(tmp_path)
    assert done.stderr == (
        f"{tmp_path}/core/__init__.py hides core-base's package `core`. "
        f"Rename it, take its folder off sys.path, or uninstall {brought_by}.\n"
    )


def test_the_command_where_another_core_has_overwritten_this_one(tmp_path):
    """A `core.cli` of the other one isn't run."""
    (tmp_path / "core").mkdir()
    root = Path(core.__file__).parents[1]
    for name in ("core_base.py", "core/_version.py", "core/namesakes.py"):
        (tmp_path / name).symlink_to(root / name)
    (tmp_path / "core" / "__init__.py").touch()
    (tmp_path / "core" / "cli.py").write_text("main = lambda: print('of the other one')")
    (make_distribution(tmp_path, "another", "9.9") / "RECORD").write_text("core/__init__.py,,\n")
    done = run_command(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not core-base's: another 9.9 has overwritten or removed it." in done.stderr


def run_command(folder, *options, **variables):
    """The command as its script begins, with a folder before the others on the path."""
    command = [sys.executable, "-c", "from core_base import main; main()", "doctor", *options]
    return subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True
    )
