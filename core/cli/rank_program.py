"""The program that `core run` starts in each process: the preludes, then the user's script as
`__main__`.

python -m core.cli.rank_program "" train.py --lr 0.1
python -m core.cli.rank_program first,second -m package.train
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

_OWN_MODULES = (__name__, "runpy", "importlib._bootstrap", "importlib._bootstrap_external")


def main(names: str, *rest: str) -> None:
    """Call the preludes and run the script or module, which sees its own arguments only.

    An uncaught error is shown from the script's first line on, and what several ranks have alike is
    shown once.

    Args:
        names: of the preludes, with commas between them; empty for none.
        rest: `-m` and a module's name, or a script's path; then its arguments.
    """
    is_module = rest[0] == "-m"
    sys.argv = [*rest[is_module:]]
    if sys.stdout is not None:  # whole lines, beside those of other ranks
        sys.stdout.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    # Make the kernel end this process with the one of torchrun that has started it, where the
    # system can.
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        import ctypes

        prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: None)
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    try:
        for name in filter(None, names.split(",")):
            from core.registry import load_prelude

            load_prelude(name)()
        if is_module:
            runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
        else:
            _run_script(os.path.abspath(rest[0]))
    except Exception as error:
        from core.display import tracebacks

        tracebacks.install()  # once a node; a hook that the program has set stays
        sys.excepthook(
            type(error),
            error.with_traceback(_from_script(error.__traceback__)),
            error.__traceback__,
        )
        raise SystemExit(1) from None


def _run_script(path: str) -> None:
    """Run a file as Python runs its main program: its module stays `__main__` to the end of the
    process.
    """
    sys.path[0] = os.path.dirname(path)
    main_module = types.ModuleType("__main__")
    main_module.__file__ = path
    sys.modules["__main__"] = main_module
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), vars(main_module))  # the user's own program


def _from_script(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames by which the script is run."""
    first = trace
    while first is not None and first.tb_frame.f_globals.get("__name__") in _OWN_MODULES:
        first = first.tb_next
    return first or trace


if __name__ == "__main__":
    # By its name: this file is `__main__` itself, which the script takes over.
    import core.cli.rank_program as rank_program

    rank_program.main(*sys.argv[1:])
