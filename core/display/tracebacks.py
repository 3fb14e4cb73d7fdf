"""Short tracebacks: an error that ends a program is shown at the user's own lines, without the
frames of core.

Only what is shown is shorter. The exception keeps its whole traceback, for debuggers, notebooks,
test runners and logs. `CORE_TRACEBACK=full` in the environment shows the whole one here too. What
several ranks that torchrun has started have alike is shown once (`core.display.torchrun`).
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Literal

from core.contract.errors import CoreError
from core.display import torchrun
from core.display.lost_connection import CAUSE_S, OF_ANOTHER, is_lost_connection
from core.display.warnings_once import is_of_core

if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import TypeAlias

    Origin: TypeAlias = Literal["core", "library", "user"]

VARIABLE = "CORE_TRACEBACK"
_LEFT_OUT = f"  [frames of core are left out here; {VARIABLE}=full shows them]\n"
_HEADER = "Traceback (most recent call last):\n"
_CAUSES = {
    True: "\nThe above exception was the direct cause of the following exception:\n\n",
    False: "\nDuring handling of the above exception, another exception occurred:\n\n",
}
_PASS_ON = (
    "torch.nn.modules.module",
    "torch.utils.data.dataloader",
    "torch.utils.data._utils.fetch",
    "torch.utils.data._utils.collate",
    "torch._tensor",
    "torch.autograd",
    "torch.autograd.graph",
)
"""Modules of torch that lead from a call of core to what is the user's: a layer, a data set, a
loss's graph.
"""
_STDLIB = os.path.dirname(os.__file__) + os.sep


class ShortText(Exception):
    """A cause that is shown as a text of its own: the traceback of another process.

    Attributes:
        short_text: as `format_short` wrote it there.
    """

    short_text: str


def install() -> None:
    """Show uncaught errors of this program short. A hook that another program has set stays."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show


def remove() -> None:
    """Undo `install`."""
    if sys.excepthook is show:
        sys.excepthook = sys.__excepthook__


def format_short(error: BaseException) -> str:
    """The text in which an error is shown: short, or as Python writes it if the environment asks
    for that.

    An error that core itself may be the cause of (raised in its frames, and no `CoreError`) is
    shown with these frames.
    """
    if _wants_full() or any(isinstance(link, BaseExceptionGroup) for link in _chain(error)):
        return "".join(traceback.format_exception(error))
    is_echo = is_lost_connection(error) and not isinstance(error, CoreError)
    return _format(_chain(error)) + OF_ANOTHER * is_echo


def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The `sys.excepthook`. An error that several ranks of torchrun have is shown by one, and its
    echoes by none.
    """
    is_cores = any("core" in map(_origin, _frames_of(link)) for link in _chain(error))
    if not isinstance(error, Exception) or _wants_full() or not (is_cores or torchrun.is_rank()):
        sys.__excepthook__(kind, error, trace)
    elif not (is_lost_connection(error) and torchrun.is_error_shown(CAUSE_S)):
        torchrun.show_once_per_node(format_short(error))
        torchrun.write_error_file(_format_message(error).rstrip())


def _wants_full() -> bool:
    return os.environ.get(VARIABLE, "").strip().lower() == "full"


def _format(links: list[BaseException]) -> str:
    error, *inner = links
    frames = _format_frames(error)
    own = [_HEADER if frames else "", frames, _format_message(error)]
    if not inner:
        head = ""
    elif isinstance(inner[0], ShortText):
        # what both have is shown once
        head = inner[0].short_text.replace(frames, "", 1).replace(_LEFT_OUT, "", 1)
    elif isinstance(error, CoreError) and "user" not in map(_origin, _frames_of(inner[0])):
        cause = "".join(traceback.format_exception_only(inner[0])).strip()
        head = ""
        own.insert(2, "" if (str(inner[0]) or cause) in str(error) else f"  [caused by {cause}]\n")
    else:
        head = _format(inner) + _CAUSES[error.__cause__ is not None]
    return head + "".join(own)


def _format_message(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error))
    return (
        text.replace("core.contract.errors.", "core.", 1) if isinstance(error, CoreError) else text
    )


def _format_frames(error: BaseException) -> str:
    frames = _frames_of(error)
    hidden = [*_hidden(error, frames), False]
    parts: list[list[traceback.FrameSummary]] = [[]]
    for index, summary in enumerate(traceback.extract_tb(error.__traceback__)):
        if not hidden[index]:
            # Where what is called is left out, the marks below the call are too: they would mark
            # all of it.
            is_plain = hidden[index + 1] or _origin(frames[index]) == "library"
            plain = traceback.FrameSummary(
                summary.filename, summary.lineno, summary.name, line=summary.line
            )
            parts[-1].append(plain if is_plain else summary)
        elif len(parts) == 1 and _origin(frames[index]) == "core":
            parts.append([])  # the remark comes once, where the first of them was
    return _LEFT_OUT.join(
        "".join(traceback.StackSummary.from_list(part).format()) for part in parts
    )


def _hidden(error: BaseException, frames: list[FrameType]) -> list[bool]:
    """For each frame, True if it is left out."""
    origins = [_origin(frame) for frame in frames]
    last_user, last_core = (
        max((index for index, origin in enumerate(origins) if origin == wanted), default=-1)
        for wanted in ("user", "core")
    )
    # its message is all that there is to know
    if isinstance(error, CoreError) or is_lost_connection(error):
        return [origin != "user" for origin in origins]
    if last_core > last_user and not any(map(_passes_on, frames[last_core + 1 : last_core + 2])):
        # What core has raised, or what it has called without a user's method in between, may be its
        # own mistake.
        return [origin != "user" and index < last_user for index, origin in enumerate(origins)]
    end = len(frames) - 1
    return [
        origin == "core"
        or (origin == "library" and (index < last_user or (_passes_on(frame) and index < end)))
        for index, (origin, frame) in enumerate(zip(origins, frames, strict=True))
    ]


def _passes_on(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in _PASS_ON


def _frames_of(error: BaseException) -> list[FrameType]:
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _origin(frame: FrameType) -> Origin:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    path = frame.f_code.co_filename
    if is_of_core(package):
        return "core"
    is_python = path.startswith("<frozen ") or (
        path.startswith(_STDLIB) and "-packages" + os.sep not in path
    )
    return "library" if package == "torch" or is_python else "user"


def _chain(error: BaseException) -> list[BaseException]:
    """The error, and those that it was raised from or in the handling of, as Python shows them."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return links
