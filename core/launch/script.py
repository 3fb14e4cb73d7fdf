"""The user's program: whether it can be run again, and by which command."""

from __future__ import annotations

import builtins
import multiprocessing
import sys
from pathlib import Path

from core.contract import LaunchError

_SHELLS_OF_PYTHON = ("ipykernel_launcher", "colab_kernel_launcher")


def describe_interactive() -> str | None:
    """The interactive program, if there is no file to run again: `"a notebook"`, `"python -c"`;
    else None.
    """
    if is_notebook():
        return "a notebook or IPython"
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return "an interactive prompt"
    path = main_file()
    if path is not None and path.exists():
        return None
    if sys.argv[:1] == ["-c"]:
        return "python -c"
    return "standard input"


def is_notebook() -> bool:
    """True if the program runs in a notebook, or in IPython."""
    return hasattr(builtins, "__IPYTHON__") or any(
        name in argument for name in _SHELLS_OF_PYTHON for argument in sys.argv
    )


def main_file() -> Path | None:
    """The file of the running program, None if it has none."""
    name = getattr(sys.modules.get("__main__"), "__file__", None)
    if not name:
        return None
    return Path(name)


def script_command() -> list[str]:
    """The command line that runs this program again, as it was started: interpreter, its options,
    script, arguments.

    `python -m package.module` stays so. A relative script's path is made whole, since the program
    may have changed its working directory.
    """
    command = [sys.executable, *sys.orig_argv[1:]]
    path = main_file()
    if (
        path is not None
        and sys.argv
        and sys.argv[0] in command
        and not Path(sys.argv[0]).is_absolute()
    ):
        command[command.index(sys.argv[0])] = str(path.absolute())
    return command


def refuse_interactive(alternative: str | None, reason: str) -> None:
    """Raise if the program has no file.

    Raises:
        LaunchError: with the strategy to use instead.
    """
    place = describe_interactive()
    if place is None:
        return
    instead = ""
    if alternative:
        instead = f'pass strategy="{alternative}", which works here, or '
    raise LaunchError(
        f"This program runs from {place}, and {reason}. Instead, {instead}put it into a file and "
        "run `python file.py`."
    )


def refuse_nested() -> None:
    """Raise in a process that multiprocessing made, where launching would go round in circles.

    Raises:
        LaunchError: the `if __name__ == "__main__":` is missing, or a worker process launches.
    """
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        raise LaunchError(
            "This process was started to run a part of the program, and ran all of it, so that "
            'what starts training must stand under a guard:\n\n    if __name__ == "__main__":\n'
            "        main()"
        )
    if multiprocessing.parent_process() is not None:
        raise LaunchError(
            f"This is {process.name}, a process that multiprocessing made, and it can't launch "
            "processes of its own. Launch from the main process."
        )
