"""`core new-plugin`: what it writes passes the kit, ruff and mypy as it stands."""

import configparser
import os
import subprocess
import sys
import tomllib

import pytest
from click.testing import CliRunner

from core.cli.commands import command
from core_testing import StrategySmoke, programs

FORMS = {
    "strategy": (),
    "strategy that wraps": ("--wraps",),
    "accelerator": ("--kind", "accelerator"),
    "precision": ("--kind", "precision"),
    "checkpoint-io": ("--kind", "checkpoint-io"),
    "checkpoint-reader": ("--kind", "checkpoint-reader"),
    "cluster-environment": ("--kind", "cluster-environment"),
    "logger": ("--kind", "logger"),
}

# Whole suites of strategies are run on others. docs/write-a-strategy.md goes on from the form that
# doesn't wrap to one (tests/examples/test_write_a_strategy.py).
IN_SHORT = " or ".join(
    [
        "sgd_momentum",
        "accumulated",
        "resume_is_bit_exact",
        *(each for each in dir(StrategySmoke) if each[:5] == "test_"),
    ]
)


@pytest.fixture
def new_plugin(tmp_path, monkeypatch):
    """Calls the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(command, ["new-plugin", *arguments])


@pytest.fixture
def generate(new_plugin, tmp_path):
    def call(*arguments, name="acme"):
        assert new_plugin(name, *arguments).exit_code == 0
        return tmp_path / f"core-{name}"

    return call


def run(*command, cwd, **variables):
    done = subprocess.run(
        [sys.executable, "-P", "-m", *command],
        cwd=cwd,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def install(project, site):
    """Build it, and unpack it into a folder that can stand on the path. Nothing is downloaded."""
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(site)]
    run("pip", "install", *options, str(project), cwd=project)


# no line is too long for the long one, or folded for no reason
NAMES = ["ab", "acme-tensor-parallelism"]


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """What ruff says of the files of all forms, with names of both lengths."""
    folder = tmp_path_factory.mktemp("all")
    for form, options in FORMS.items():
        for name in NAMES:
            target = ["--directory", str(folder / form / name)]
            assert (
                CliRunner().invoke(command, ["new-plugin", name, *options, *target]).exit_code == 0
            )
    ruff = [sys.executable, "-P", "-m", "ruff"]
    linted = subprocess.run(
        [*ruff, "check", "--no-cache", "--output-format=concise"], cwd=folder, stdout=-1, text=True
    )
    formatted = subprocess.run(
        [*ruff, "format", "--check", "--no-cache"], cwd=folder, stdout=-1, text=True
    )
    return f"{linted.stdout}\n{formatted.stdout}".replace("Would reformat: ", "").splitlines()


@pytest.mark.parametrize("name", NAMES, ids=["short", "long"])
@pytest.mark.parametrize("form", FORMS)
def test_is_clean(complaints, form, name):
    assert [line for line in complaints if line.startswith(f"{form}{os.sep}{name}{os.sep}")] == []
    assert "All checks passed!" in complaints


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_is_typed(generate, form, tmp_path_factory):
    cache = tmp_path_factory.getbasetemp() / "mypy"
    assert "Success" in run("mypy", "--cache-dir", str(cache), cwd=generate(*FORMS[form]))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("form", "chosen"),
    [
        *((form, ["-k", IN_SHORT] if form.startswith("strategy") else []) for form in FORMS),
        pytest.param("strategy", [], marks=pytest.mark.exhaustive),
    ],
)
def test_passes_its_own_tests(generate, form, chosen, tmp_path):
    project = generate(*FORMS[form])
    install(project, tmp_path / "installed")
    path = os.pathsep.join([str(tmp_path / "installed"), *sys.path])
    command = [*programs.PYTEST, "-q", "-p", "no:cacheprovider", *chosen]
    done = programs.run(command, cwd=project, env=os.environ | {"PYTHONPATH": path}, timeout=550)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
    assert "failed" not in done.stdout


def test_says_what_it_has_written_and_what_to_do_next(new_plugin, tmp_path):
    said = new_plugin("Acme_Fast", "--kind", "logger").output
    assert "core-acme-fast: 14 files" in said
    assert "  core_acme_fast/logger.py" in said
    first, *steps = [line.strip() for line in said.partition("Next, ")[2].splitlines() if line]
    assert "`python plugins/wheels.py dist`" in first
    install = [
        "cp ../core/dist/constraints.txt .",
        "python -m pip install -c constraints.txt -e '.[dev]'",
    ]
    assert steps == ["cd core-acme-fast", *install, "core check acme_fast --kind logger"]
    readme = (tmp_path / "core-acme-fast" / "README.md").read_text().replace('"', "'")
    assert all(f"$ {step}\n" in readme for step in steps[1:]), "its README says the same"
    project = tomllib.loads((tmp_path / "core-acme-fast" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {
        "core.loggers": {"acme_fast": "core_acme_fast:AcmeFastLogger"}
    }
    assert project["dependencies"] == ["core-base>=0.1,<0.2"]


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [(("core-acme",), "core-acme"), (("acme", "--directory", "some/where"), "some/where")],
)
def test_where_it_writes(new_plugin, tmp_path, arguments, folder):
    assert new_plugin(*arguments).exit_code == 0
    assert (tmp_path / folder / "core_acme" / "strategy.py").exists()


def test_overwrites_nothing(new_plugin, generate):
    project = generate()
    (project / "core_acme" / "strategy.py").write_text("mine")
    again = new_plugin("acme")
    assert again.exit_code == 1
    assert "core-acme is not empty, and nothing is overwritten" in again.output
    assert (project / "core_acme" / "strategy.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["My Plugin!"], "How about my-plugin?"),
        (["3d"], "How about d?"),
        (["ddp"], "'ddp' is a strategy of core-ddp already"),
        (["single-device"], "'single_device' is a strategy of core-base already"),
        (["auto"], "'auto' is a strategy of core-base already"),
        (["training"], "core-training is a package of core's own"),
        (["resilience"], "core-resilience is a package of core's own"),
        (["acme", "--kind", "stratgy"], "Did you mean strategy?"),
        (["acme", "--kind", "logger", "--wraps"], "--wraps is for strategies"),
    ],
)
def test_what_is_refused(new_plugin, tmp_path, arguments, complaint):
    done = new_plugin(*arguments)
    assert (done.exit_code, complaint in done.output) == (1 + ("--kind" in arguments), True)
    assert not list(tmp_path.iterdir())


def test_an_alias_that_another_package_offers_is_refused(core_cli):
    core_cli.install("other", "[core.strategies]\nacme = other:Acme\n")
    done = core_cli("new-plugin", "acme")
    assert "'acme' is a strategy of other already" in done.stderr
    assert "my-acme" in done.stderr


def test_its_tox_installs_torch_once(generate):
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(generate() / "tox.ini")
    assert [name for name in settings.sections() if "extras" in settings[name]] == ["testenv:tests"]
    commands = settings["testenv:tests"]["commands"].split("\n")
    assert [line.partition(" ")[0] for line in commands if line] == ["mypy", "pytest"]
    assert settings["tox"]["env_list"] == "lint, tests"
