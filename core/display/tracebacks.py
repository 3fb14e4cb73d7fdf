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
_LEFT_OUT = f"[frames of core are left out; {VARIABLE}=full shows them]\n"
_HEADER = "Traceback (most recent call last):\n"
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
STDLIB = os.path.dirname(os.__file__) + os.sep


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
    links = _chain(error)
    if _wants_full() or any(isinstance(link, BaseExceptionGroup) for link in links):
        return "".join(traceback.format_exception(error))
    text = _format(links)
    if _LEFT_OUT in text:  # said once, for all of it
        text = _LEFT_OUT + text.replace(_LEFT_OUT, "")
    if is_lost_connection(error) and not isinstance(error, CoreError):
        text += OF_ANOTHER
    return text


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
    frames, message = _format_frames(error), _format_message(error)
    if not inner:
        return frames + message
    cause = inner[0]
    if isinstance(cause, ShortText):
        lines = frames.replace(_LEFT_OUT, "").removeprefix(_HEADER)  # what both have is shown once
        return cause.short_text.replace(lines, "", 1) + frames + message
    if isinstance(error, CoreError) and "user" not in map(_origin, _frames_of(cause)):
        said = _format_message(cause).strip()
        if str(cause) not in str(error) and said not in str(error):
            message = f"  [caused by {said}]\n{message}"
        return frames + message
    between = "During handling of the above exception, another exception occurred"
    if error.__cause__ is not None:
        between = "The above exception was the direct cause of the following exception"
    return f"{_format(inner)}\n{between}:\n\n{frames}{message}"


def _format_message(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error))
    if isinstance(error, CoreError):
        return text.replace("core.contract.errors.", "core.", 1)
    return text


def _format_frames(error: BaseException) -> str:
    """The header and the frames; empty if none is shown. Those of core that aren't are said once,
    before.
    """
    frames = _frames_of(error)
    is_hidden = _hidden(error, frames)
    kept, remark = [], ""
    summaries = traceback.extract_tb(error.__traceback__)
    for frame, hidden, summary in zip(frames, is_hidden, summaries, strict=True):
        if not hidden:
            kept.append(summary)
        elif _origin(frame) == "core":
            remark = _LEFT_OUT
    text = "".join(traceback.StackSummary.from_list(kept).format())
    if kept:
        text = _HEADER + text
    return remark + text


def _hidden(error: BaseException, frames: list[FrameType]) -> list[bool]:
    """For each frame, True if it is left out."""
    origins = [_origin(frame) for frame in frames]
    # its message is all that there is to know
    if isinstance(error, CoreError) or is_lost_connection(error):
        return [origin != "user" for origin in origins]
    last_user = last_core = -1
    for index, origin in enumerate(origins):
        if origin == "user":
            last_user = index
        if origin == "core":
            last_core = index
    # What core has raised, or what it has called without a user's method in between, may be its own
    # mistake.
    called = frames[last_core + 1 : last_core + 2]
    is_cores = last_core > last_user and not any(map(_passes_on, called))
    hidden = []
    for index, (origin, frame) in enumerate(zip(origins, frames, strict=True)):
        leads_on = origin == "core" or (_passes_on(frame) and frame is not frames[-1])
        is_left_out = index < last_user or (leads_on and not is_cores)
        hidden.append(origin != "user" and is_left_out)
    return hidden


def _passes_on(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in _PASS_ON


def _frames_of(error: BaseException) -> list[FrameType]:
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _origin(frame: FrameType) -> Origin:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    path = frame.f_code.co_filename
    if is_of_core(package):
        return "core"
    is_python = path.startswith(STDLIB) and "-packages" + os.sep not in path
    if package == "torch" or is_python or path.startswith("<frozen "):
        return "library"
    return "user"


def _chain(error: BaseException) -> list[BaseException]:
    """The error, and those that it was raised from or in the handling of, as Python shows them."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        before, link = link, link.__cause__
        if link is None and not before.__suppress_context__:
            link = before.__context__
    return links
