"""Commands that installed packages add: found without an import, loaded when they are called."""

import json

import importlib_metadata
import pytest

HELLO = """\
import sys
import click

print("imported", file=sys.stderr)

@click.command()
@click.argument("name")
def hello(name):
    if name == "nobody":
        from core import ConfigurationError
        raise ConfigurationError("Expected somebody's name.")
    click.echo(f"Hello, {name}.")
"""


@pytest.fixture
def hello(core_cli):
    def install(name="core-acme", module="core_acme", source=HELLO, target="hello"):
        entry = f"[core.commands]\nsay-hello = {module}:{target}\n"
        core_cli.install(name, entry, modules={module: source}, summary="Greets people")

    return install


def test_it_is_imported_when_it_is_called(core_cli, hello):
    hello()
    listed = core_cli("--help")
    others = listed.stdout.partition("Of other packages:")[2]
    assert "say-hello Greets people (core-acme 1.0)" in " ".join(others.split())
    assert "imported" not in listed.stderr + core_cli("list", "commands").stderr
    done = core_cli("say-hello", "you")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello, you.\n", "imported\n")
    assert core_cli("core-acme:say_hello", "you").stdout == "Hello, you.\n"


def test_a_function_may_make_it(core_cli, hello):
    source = HELLO + "\ndef make():\n    return hello\n"
    hello(source=source, target="make")
    assert core_cli("say-hello", "you").stdout == "Hello, you.\n"


def test_its_errors_are_their_messages(core_cli, hello):
    hello()
    done = core_cli("say-hello", "nobody")
    assert (done.returncode, done.stderr) == (1, "imported\nError: Expected somebody's name.\n")
    assert core_cli("say-hello").returncode == 2


def test_describe_shows_its_help(core_cli, hello):
    hello()
    assert core_cli("describe", "say-hello").stdout.startswith(
        "Usage: core say-hello [OPTIONS] NAME"
    )


@pytest.mark.parametrize("name", ["check", "new-plugin", "core-testing:check"])
def test_one_of_a_package_that_is_not_installed_says_what_to_install(core_cli, monkeypatch, name):
    find = importlib_metadata.distributions
    others = lambda **options: (each for each in find(**options) if each.name != "core-testing")  # noqa: E731
    monkeypatch.setattr(importlib_metadata, "distributions", others)
    done = core_cli(name, "ddp")
    assert done.returncode == 1
    assert "core-testing is not installed: `pip install core-testing`" in done.stderr


def test_two_of_one_name_are_an_error_that_names_both(core_cli, hello):
    hello()
    hello("core-bolt", "core_bolt")
    done = core_cli("say-hello", "you")
    assert done.returncode == 1
    assert '"core-acme:say_hello" or "core-bolt:say_hello"' in done.stderr.replace("\n", " ")
    assert core_cli("core-bolt:say-hello", "you").stdout == "Hello, you.\n"
    statuses = {
        row["alias"]: row["status"]
        for row in json.loads(core_cli("list", "commands", "--all", "--json").stdout)
    }
    assert (statuses["say_hello"], statuses["doctor"]) == ("conflict", "ok")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise RuntimeError('odd')", "its import raised RuntimeError: odd"),
        ("hello = 3", "expected a subclass of click"),
    ],
)
def test_a_broken_one_breaks_nothing_else(core_cli, hello, source, said):
    hello(source=source)
    assert core_cli("--help").returncode == core_cli("list-strategies").returncode == 0
    done = core_cli("say-hello")
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_name_of_a_built_in_one_is_taken(core_cli):
    core_cli.install(
        "core-evil", "[core.commands]\ndoctor = core_evil:doctor\n", modules={"core_evil": HELLO}
    )
    assert core_cli("doctor", "--help").stdout.startswith("Usage: core doctor")
    (row,) = (
        row
        for row in json.loads(core_cli("list", "commands", "--all", "--json").stdout)
        if row["provider"] == "core-evil"
    )
    assert row["status"] == "reserved"
