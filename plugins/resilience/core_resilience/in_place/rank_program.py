"""The program of one process of `core go-on`: runs the script once a round.

python -m core_resilience.in_place.rank_program 5 begins train.py --lr 0.1
python -m core_resilience.in_place.rank_program 5 waits -m package.train
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core_resilience.in_place import script_imports
from core_resilience.in_place.departure import Departure
from core_resilience.in_place.line import MessageLine

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import TracebackType

_OWN_MODULES = (__name__, "importlib._bootstrap", "importlib._bootstrap_external")


def main(descriptor: str, use: str, *rest: str) -> None:
    """Run the script in each round, until the launcher says that all are done.

    Args:
        descriptor: of the line to the launcher.
        use: `"waits"` if the process takes the place of another one, and may import what the script
            does meanwhile.
        rest: `-m` and a module's name, or a script's path; then its arguments.
    """
    is_module = rest[0] == "-m"
    script, *arguments = rest[1:] if is_module else rest
    if not is_module:
        script = os.path.abspath(script)
        sys.path[0] = os.path.dirname(script)
    if sys.stdout is not None:  # whole lines, beside those of other ranks
        sys.stdout.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    departure = Departure(MessageLine(socket.socket(fileno=int(descriptor))))
    message = None
    try:
        if use == "waits":
            script_imports.load(script, is_module=is_module)
        departure.line.send({"ready": True})
        while "end" not in (message := message or departure.next_message()):
            if "imports" in message:
                script_imports.load_modules(message["imports"])
                message = None
                continue
            os.environ.update(message["variables"])
            if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
                os.environ["CORE_ROUND_BEGAN"] = str(time.monotonic())
            sys.argv = [script, *arguments]
            message = _round(departure, script, is_module, has_spares=message["has_spares"])
    except KeyboardInterrupt:
        sys.exit(130)


def _round(
    departure: Departure, script: str, is_module: bool, *, has_spares: bool
) -> dict[str, Any] | None:
    """Run the script once. Returns the message that follows, if it has come already."""
    try:
        departure.begin_round(has_spares=has_spares)
        _run(script, is_module)
        departure.end_round()
    except BaseException as error:
        if not departure.is_reason_for(error):
            _show(error)
            raise
    else:
        departure.line.send({"done": True})
        message = departure.next_message()
        if "leave" not in message:
            return message
    departure.clean()
    departure.line.send({"ready": True})
    return None


def _run(script: str, is_module: bool) -> None:
    """Run the script to its end, or to a `sys.exit()` that says all is well, as a new
    `__main__`.
    """
    main_module = types.ModuleType("__main__")
    if is_module:
        spec = _spec_of(script)
        sys.argv[0] = main_module.__file__ = spec.origin or script
        main_module.__spec__, main_module.__package__ = spec, spec.parent
        code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]  # it has been asked for
    else:
        main_module.__file__ = script
        code = compile(Path(script).read_bytes(), script, "exec")
    sys.modules["__main__"] = main_module
    try:
        exec(code, vars(main_module))  # the user's own program
    except SystemExit as ended:
        if ended.code:
            raise


def _spec_of(name: str) -> ModuleSpec:
    """The module of this name, or the `__main__` of a package."""
    found = importlib.util.find_spec(name)
    if found is not None and found.submodule_search_locations is not None:
        found = importlib.util.find_spec(f"{name}.__main__")
    if found is None or not hasattr(found.loader, "get_code"):
        raise ImportError(f"There is no module {name!r} that can be run.", name=name)
    return found


def _show(error: BaseException) -> None:
    """Show an error of the script from its first line on, and end by it."""
    if not isinstance(error, Exception):
        return
    sys.excepthook(
        type(error), error.with_traceback(_from_script(error.__traceback__)), error.__traceback__
    )
    raise SystemExit(1) from None


def _from_script(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames by which the script is run."""
    first = trace
    while first is not None and first.tb_frame.f_globals.get("__name__") in _OWN_MODULES:
        first = first.tb_next
    return first or trace


if __name__ == "__main__":
    # By its name: this file is `__main__` itself, which the script takes over.
    import core_resilience.in_place.rank_program as rank_program

    rank_program.main(*sys.argv[1:])
