"""`core new-plugin`: what it writes passes the kit, ruff and mypy as it stands."""

import configparser
import os
import subprocess
import sys
import tomllib

import pytest

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

WRAPS = "strategy that wraps"
# The suites of other strategies are whole, that of the form which doesn't wrap among them.
IN_SHORT = " or ".join(
    [
        "sgd_momentum",
        "accumulated",
        "resume_is_bit_exact",
        *(each for each in dir(StrategySmoke) if each[:5] == "test_"),
    ]
)


@pytest.fixture
def generate(core_cli):
    def call(*arguments, name="acme"):
        done = core_cli("new-plugin", name, *arguments)
        assert done.returncode == 0, done.stderr
        return core_cli.working / f"core-{name}"

    return call


def run(*command, cwd, **variables):
    done = subprocess.run(
        [sys.executable, "-P", "-m", *command], cwd=cwd, env=os.environ | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def install(project, site):
    """Build it, and unpack it into a folder that can stand on the path. Nothing is downloaded."""
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(site)]
    run("pip", "install", *options, str(project), cwd=project)


@pytest.mark.parametrize("name", ["ab", "acme-tensor-parallelism"], ids=["short", "long"])
@pytest.mark.parametrize("form", FORMS)
def test_is_clean(generate, form, name):
    """No line is too long for a long name, or folded for no reason with a short one."""
    project = generate(*FORMS[form], name=name)
    run("ruff", "check", "--no-cache", cwd=project)
    run("ruff", "format", "--check", "--no-cache", cwd=project)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_is_typed(generate, form, tmp_path_factory):
    cache = tmp_path_factory.getbasetemp() / "mypy"
    assert "Success" in run("mypy", "--cache-dir", str(cache), cwd=generate(*FORMS[form]))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("form", "options"),
    [
        *(
            pytest.param(form, (), marks=pytest.mark.exhaustive if form == WRAPS else pytest.mark.slow, id=form)
            for form in FORMS
        ),
        pytest.param(WRAPS, ("-k", IN_SHORT), marks=pytest.mark.slow, id=f"{WRAPS}, in short"),
    ],
)
def test_passes_its_own_tests(generate, form, options, tmp_path):
    if form == "strategy" and "CORE_WHEELS" in os.environ:
        pytest.skip("tests/test_fresh_environment.py runs the same suite, by `core check`")
    project = generate(*FORMS[form])
    install(project, tmp_path / "installed")
    path = os.pathsep.join([str(tmp_path / "installed"), *sys.path])
    command = [*programs.PYTEST, "-q", "-p", "no:cacheprovider", *options]
    done = programs.run(command, cwd=project, env=os.environ | {"PYTHONPATH": path}, timeout=550)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
    assert "failed" not in done.stdout


def test_says_what_it_has_written_and_what_to_do_next(core_cli):
    done = core_cli("new-plugin", "Acme_Fast", "--kind", "logger")
    assert "core-acme-fast: 14 files" in done.stdout
    assert "  core_acme_fast/logger.py" in done.stdout
    written = core_cli.working / "core-acme-fast"
    first, *steps = [line.strip() for line in done.stdout.partition("Next, ")[2].splitlines() if line]
    assert "`python plugins/wheels.py dist`" in first
    install = ["cp ../core/dist/constraints.txt .", "python -m pip install -c constraints.txt -e '.[dev]'"]
    assert steps == ["cd core-acme-fast", *install, "core check acme_fast --kind logger"]
    readme = (written / "README.md").read_text().replace('"', "'")
    assert all(f"$ {step}\n" in readme for step in steps[1:]), "its README says the same"
    project = tomllib.loads((written / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {"core.loggers": {"acme_fast": "core_acme_fast:AcmeFastLogger"}}
    assert project["dependencies"] == ["core-training>=0.1,<0.2"]


def test_a_name_with_the_prefix_of_distributions_is_the_same(core_cli):
    assert core_cli("new-plugin", "core-acme").returncode == 0
    assert (core_cli.working / "core-acme" / "core_acme" / "strategy.py").exists()


def test_overwrites_nothing(core_cli, generate):
    project = generate()
    (project / "core_acme" / "strategy.py").write_text("mine")
    again = core_cli("new-plugin", "acme")
    assert again.returncode == 1
    assert "core-acme is not empty, and nothing is overwritten" in again.stderr
    assert (project / "core_acme" / "strategy.py").read_text() == "mine"


def test_writes_where_it_is_told_to(core_cli):
    done = core_cli("new-plugin", "acme", "--directory", "some/where")
    assert done.returncode == 0, done.stderr
    assert (core_cli.working / "some" / "where" / "pyproject.toml").exists()


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("My Plugin!", "How about my-plugin?"),
        ("3d", "How about d?"),
        ("ddp", "'ddp' is a strategy of core-ddp already"),
        ("single-device", "'single_device' is a strategy of core-training already"),
        ("auto", "'auto' is a strategy of core-training already"),
        ("training", "core-training is a package of core's own"),
        ("averaging", "core-averaging is a package of core's own"),
    ],
)
def test_a_bad_name_is_refused(core_cli, name, complaint):
    done = core_cli("new-plugin", name)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert not list(core_cli.working.iterdir())


def test_an_alias_that_another_package_offers_is_refused(core_cli):
    core_cli.install("other", "[core.strategies]\nacme = other:Acme\n")
    done = core_cli("new-plugin", "acme")
    assert "'acme' is a strategy of other already" in done.stderr
    assert "my-acme" in done.stderr


def test_an_unknown_kind_is_refused_with_what_is_near(core_cli):
    done = core_cli("new-plugin", "acme", "--kind", "stratgy")
    assert done.returncode == 2
    assert "Did you mean strategy?" in done.stderr
    wraps = core_cli("new-plugin", "acme", "--kind", "logger", "--wraps")
    assert wraps.returncode == 2
    assert "--wraps is for strategies" in wraps.stderr


def test_its_tox_installs_torch_once(generate):
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(generate() / "tox.ini")
    assert [name for name in settings.sections() if "extras" in settings[name]] == ["testenv:tests"]
    commands = settings["testenv:tests"]["commands"].split("\n")
    assert [line.partition(" ")[0] for line in commands if line] == ["mypy", "pytest"]
    assert settings["tox"]["env_list"] == "lint, tests"
