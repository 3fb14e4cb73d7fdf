"""The command as a whole: help, exit codes, colour, errors."""

import os
import pty
import subprocess
import sys

import pytest

import core


def test_version(core_cli):
    assert core_cli("--version").stdout == f"core {core.__version__}\n"


def test_help_shows_examples_in_whole_lines(core_cli):
    done = core_cli("--help")
    assert done.returncode == 0
    assert (
        "core explain --strategy ddp --devices 2   what a run would use, and why\n" in done.stdout
    )
    assert max(map(len, done.stdout.splitlines())) <= 80
    commands = [
        line.split()[0]
        for line in done.stdout.partition("Commands:")[2].splitlines()
        if line[2:3].strip()
    ]
    assert {
        "describe",
        "doctor",
        "explain",
        "list",
        "list-strategies",
    } <= set(commands)


@pytest.mark.parametrize("command", ["check", "describe", "doctor", "list"])
def test_every_command_has_examples(core_cli, command):
    # not -h: click keeps what a command was called with first, by other tests
    done = core_cli(command, "--help")
    assert done.returncode == 0
    assert f"  core {command}" in done.stdout.partition("Examples:")[2]


def test_a_misspelt_command(core_cli):
    done = core_cli("list-strategis")
    assert done.returncode == 2
    assert "No such command 'list-strategis'. Did you mean 'list-strategies'" in done.stderr


def test_an_error_is_its_message_and_nothing_else(core_cli):
    done = core_cli("explain", "--accelerator", "cpu", "--devices", "0-3")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: devices='0-3': ranges are not understood.")
    assert "Traceback" not in done.stderr


def test_color_on_a_terminal_only(core_cli):
    def run_in_terminal(arguments, working, **variables):
        """The command's output to a terminal."""
        leader, follower = pty.openpty()
        child = subprocess.Popen(
            [sys.executable, "-m", "core", *arguments],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            cwd=working,
            env={name: value for name, value in os.environ.items() if name != "NO_COLOR"}
            | {"TERM": "xterm"}
            | variables,
        )
        os.close(follower)
        output = b""
        try:
            while block := os.read(leader, 65536):
                output += block
        except OSError:
            pass  # how Linux says that nobody holds the other end any more
        finally:
            os.close(leader)
            child.wait()
        return output.decode()

    arguments = ["list-strategies"]
    assert "\x1b[" in run_in_terminal(arguments, core_cli.working)
    assert "\x1b[" not in run_in_terminal(arguments, core_cli.working, NO_COLOR="1")
    assert "\x1b[" not in core_cli(*arguments).stdout


def test_a_warning_is_one_line(core_cli):
    done = core_cli("list-strategies", CORE_DISABLE_PLUGINS="core-acmee")
    assert done.returncode == 0
    assert done.stderr.startswith(
        "Warning: CORE_DISABLE_PLUGINS names 'core-acmee', which is neither"
    )
    assert ".py" not in done.stderr
