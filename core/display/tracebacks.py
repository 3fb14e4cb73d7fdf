"""Short tracebacks: an error that ends a program is shown at the user's own lines, without the frames of core.

Only what is shown is shorter. The exception keeps its whole traceback, for debuggers, for `logging.exception`, and for
all else that asks the traceback module. `CORE_TRACEBACK=full` in the environment shows the whole one here too.

- In a script: `install` sets a `sys.excepthook` where there is no other yet. What several ranks that torchrun has
  started have alike is shown once (`core.display.torchrun`).
- In a notebook: IPython's handler of exceptions gets fewer frames to show.
- In pytest: modules of core get pytest's own mark, `__tracebackhide__`, with which it asks `hides_frames`. There is no
  plugin for pytest: those are imported in every run of it, and their whole distribution is rewritten for its asserts.
"""

from __future__ import annotations

import os
import sys
import traceback
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from core.contract.errors import CoreError
from core.contract.kinds import KINDS
from core.display import torchrun
from core.display.lost_connection import is_lost_connection

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import TypeAlias

    Origin: TypeAlias = Literal["core", "library", "shell", "user"]

VARIABLE = "CORE_TRACEBACK"
_LEFT_OUT = f"  [frames of core are left out here; {VARIABLE}=full shows them]\n"
_HEADER = "Traceback (most recent call last):\n"
_CAUSES = {
    True: "\nThe above exception was the direct cause of the following exception:\n\n",
    False: "\nDuring handling of the above exception, another exception occurred:\n\n",
}
_OF_ANOTHER = "If another rank has ended first, its own error, above or in its log, is the cause.\n"
_CAUSE_S = 2.0
"""Seconds that a rank which has lost another one waits for that one's own error, to show it alone."""
_CALLS_OF_MODULES = ("_wrapped_call_impl", "_call_impl")
_CALLERS = ("torch.nn.modules.module", "torch.utils.data.dataloader", "torch.utils.data._utils.fetch")
"""Modules of torch by which core calls the methods of modules and data sets."""
_PASS_ON = (
    *("torch.utils.data.dataloader", "torch.utils.data._utils.fetch", "torch.utils.data._utils.collate"),
    *("torch._tensor", "torch.autograd", "torch.autograd.graph"),
)
"""Modules of torch that lead from a batch's fetch to its data set or collate function, and from a loss to its graph."""
_STDLIB = os.path.dirname(os.__file__) + os.sep
_newest = (0, "")
"""The number of modules when they were last looked through for pytest, and the newest of them."""
_marked: list[dict[str, Any]] = []
"""Names of each module of torch that gets pytest's mark, which is taken back; core's own modules keep theirs."""

_in_ipython: list[Any] = []
"""IPython's own form of the handler that it got."""


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
    if (shell := _shell()) is not None and shell.custom_exceptions == ():
        shell.set_custom_exc((Exception,), _show_in_ipython)
        _in_ipython[:] = [shell.CustomTB]
    if "_pytest" in sys.modules:
        _mark_for_pytest()


def remove() -> None:
    """Undo `install`."""
    if sys.excepthook is show:
        sys.excepthook = sys.__excepthook__
    if (shell := _shell()) is not None and shell.CustomTB in _in_ipython:
        shell.set_custom_exc((), None)
    for names in _marked:
        names.pop("__tracebackhide__", None)


def _shell() -> Any:
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def _mark_for_pytest() -> None:
    """Hide the frames of the modules of core that are imported by now."""
    global _newest
    if (newest := (len(sys.modules), next(reversed(sys.modules)))) != _newest:
        _marked.clear()
        for name, module in sys.modules.copy().items():
            if name.partition(".")[0] in _own_packages():
                vars(module).setdefault("__tracebackhide__", hides_frames)
            elif name in _CALLERS:
                _marked.append(vars(module))
        _newest = newest
    for names in _marked:
        names.setdefault("__tracebackhide__", hides_callers)


def wants_full() -> bool:
    """True if the environment asks for full tracebacks."""
    return os.environ.get(VARIABLE, "").strip().lower() == "full"


def format_short(error: BaseException) -> str:
    """The text in which an error is shown: short, or as Python writes it if the environment asks for that.

    Frames of core and its plugins are left out, and those of torch and Python by which core calls the user's methods.
    An error that core itself may be the cause of (raised in its frames, and no `CoreError`) is shown with these frames.
    """
    if wants_full() or any(isinstance(link, BaseExceptionGroup) for link in _chain(error)):
        return _format_whole(error)
    is_echo = is_lost_connection(error) and not _is_core_error(error)
    return "".join([*_format(error, set()), *[_OF_ANOTHER] * is_echo])


def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The `sys.excepthook`."""
    if isinstance(error, Exception) and not wants_full():
        try:
            is_of_core = any("core" in _origins(link) for link in _chain(error))
            if is_of_core or torchrun.is_rank():
                _show_among_ranks(error, format_short if is_of_core else _format_whole)
                return
        except Exception:  # of the formatting: then Python shows the error itself
            pass
    sys.__excepthook__(kind, error, trace)


def _show_among_ranks(error: Exception, write: Callable[[BaseException], str]) -> None:
    """Show an error. One that several ranks of torchrun have is shown by one of them, and its echoes by none."""
    if is_lost_connection(error) and torchrun.is_error_shown(_CAUSE_S):
        return
    torchrun.show_once_per_node(write(error))
    torchrun.write_error_file(_format_message(error).rstrip())


def _format_whole(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _show_in_ipython(shell: Any, kind: type[Exception], error: Exception, trace: Any, tb_offset: Any = None) -> None:
    """The handler that IPython calls, in its own form; its debugger gets the whole traceback."""
    shown = trace if wants_full() else _shortened(error, trace)
    if _is_core_error(error) and not wants_full():
        vars(error)["_render_traceback_"] = lambda: format_short(error).splitlines()  # which IPython asks for
    shell.showtraceback((kind, error, shown), tb_offset=tb_offset)
    vars(error).pop("_render_traceback_", None)
    sys.last_traceback = trace


def _shortened(error: Exception, trace: TracebackType) -> TracebackType:
    """A traceback of the frames that are shown; the whole one if there are none."""
    links = [trace]
    while (link := links[-1].tb_next) is not None:
        links.append(link)
    hidden = _hidden(error, [link.tb_frame for link in links])
    origins = [_origin(link.tb_frame) for link in links]
    if (last_user := _last(origins, "user")) > _last(origins, "core"):
        # IPython writes five lines around each frame's: the user's own line is enough, and the message says the rest.
        hidden[last_user + 1 :] = [True] * (len(hidden) - last_user - 1)
    short = None
    for link, is_hidden in zip(reversed(links), reversed(hidden), strict=True):
        if not is_hidden or _origin(link.tb_frame) == "shell":
            short = TracebackType(short, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return short or trace


def _format(error: BaseException, seen: set[int]) -> list[str]:
    seen.add(id(error))
    inner = _inner(error)
    inner = None if inner is None or id(inner) in seen else inner
    frames = _format_frames(error)
    head: list[str] = []
    remark = ""
    if isinstance(inner, ShortText):
        head = [_without_common(inner.short_text, frames)]
    elif inner is not None and _is_core_error(error) and "user" not in _origins(inner):
        text = "".join(traceback.format_exception_only(inner)).strip()
        remark = "" if (str(inner) or text) in str(error) else f"  [caused by {text}]\n"
    elif inner is not None:
        head = [*_format(inner, seen), _CAUSES[error.__cause__ is not None]]
    return [*head, _HEADER if frames else "", frames, remark, _format_message(error)]


def _without_common(short_text: str, frames: str) -> str:
    """The traceback of another process, without the first lines if the one that follows it has the same."""
    for common in (frames, _LEFT_OUT):
        if common in frames and short_text.startswith(_HEADER + common):
            rest = short_text.removeprefix(_HEADER + common)
            return _HEADER + rest if rest.startswith(" ") else rest
    return short_text


def _format_message(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error))
    return text.replace("core.contract.errors.", "core.", 1) if _is_core_error(error) else text


def _format_frames(error: BaseException) -> str:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    summaries = traceback.extract_tb(error.__traceback__)
    hidden = [*_hidden(error, frames), False]
    parts: list[list[traceback.FrameSummary]] = [[]]
    for index, (frame, summary) in enumerate(zip(frames, summaries, strict=False)):
        if not hidden[index]:
            # Where what is called is left out, the marks below the call are too: they would mark all of it.
            is_plain = hidden[index + 1] or _origin(frame) == "library"
            parts[-1].append(_without_marks(summary) if is_plain else summary)
        elif len(parts) == 1 and _origin(frame) == "core":
            parts.append([])  # the remark comes once, where the first of them was
    texts = ["".join(traceback.StackSummary.from_list(part).format()) for part in parts]
    return _LEFT_OUT.join(texts)


def _without_marks(summary: traceback.FrameSummary) -> traceback.FrameSummary:
    return traceback.FrameSummary(summary.filename, summary.lineno, summary.name, line=summary.line)


def _hidden(error: BaseException, frames: list[FrameType]) -> list[bool]:
    """For each frame, True if it is left out."""
    origins = [_origin(frame) for frame in frames]
    end = len(frames)
    reraises = frames and frames[-1].f_code.co_name == "reraise"  # torch, of a worker's error
    is_message_enough = _is_core_error(error) or is_lost_connection(error)  # its message is all that there is to know
    if not (is_message_enough or reraises):
        # What core's own code has raised, or what it has called without a user's method in between, may be its mistake.
        last_user, last_core = _last(origins, "user"), _last(origins, "core")
        if last_core > last_user and not (last_core + 1 < len(frames) and _passes_on(frames[last_core + 1])):
            end = last_user + 1 if last_core == len(frames) - 1 else last_core
    others = [index for index, origin in enumerate(origins) if origin != "library"]
    hidden = []
    for index, origin in enumerate(origins):
        before = max((other for other in others if other < index), default=None)
        carries = before is not None and origins[before] == "core" and (is_message_enough or others[-1] > index)
        calls = index + 1 < len(frames) and (_calls_module(frames[index]) or _passes_on(frames[index]))
        leaves_out = origin in ("core", "shell") or (origin == "library" and (carries or calls))
        hidden.append(leaves_out and index < end)
    return hidden


def _last(origins: list[Origin], wanted: Origin) -> int:
    return max((index for index, origin in enumerate(origins) if origin == wanted), default=-1)


def _calls_module(frame: FrameType) -> bool:
    """True for a frame of torch that only calls a module's `forward`."""
    return frame.f_code.co_name in _CALLS_OF_MODULES and frame.f_globals.get("__name__") == "torch.nn.modules.module"


def _passes_on(frame: FrameType) -> bool:
    """True for a frame of torch in which nothing of core's can have gone wrong: data and graphs are the user's."""
    return frame.f_globals.get("__name__") in _PASS_ON


def _origins(error: BaseException) -> set[Origin]:
    return {_origin(frame) for frame, _ in traceback.walk_tb(error.__traceback__)}


def _origin(frame: FrameType) -> Origin:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    path = frame.f_code.co_filename
    if package in _own_packages():
        return "core"
    if package == "IPython":
        return "shell"
    is_python = path.startswith("<frozen ") or (path.startswith(_STDLIB) and "-packages" + os.sep not in path)
    return "library" if package == "torch" or is_python else "user"


@cache
def _own_packages() -> frozenset[str]:
    """Core's package, and those of its plugins that are named as its own; a stranger's is shown as the user's is."""
    from importlib.metadata import entry_points  # as long to import as the rest of what is shown

    every = entry_points()  # once for all groups: a call reads the metadata of all distributions
    found = {
        entry_point.module.partition(".")[0]
        for kind in KINDS.values()
        if kind.name != "command"  # a test of the conformance kit is the caller's
        for entry_point in every.select(group=kind.group)
    }
    return frozenset({"core"} | {package for package in found if package.startswith("core_")})


def _is_core_error(error: BaseException) -> bool:
    return isinstance(error, CoreError)


def _inner(error: BaseException) -> BaseException | None:
    """The error that this one was raised from, or in the handling of, as Python shows it."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _chain(error: BaseException) -> list[BaseException]:
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = _inner(link)
    return links


def hides_frames(excinfo: Any) -> bool:
    """Called by pytest: True if core's frames are left out of the traceback of this error."""
    if excinfo is None or wants_full():
        return False
    _mark_for_pytest()  # pytest goes from the outermost frame inwards: modules imported since come after this one
    origins = [_origin(frame) for frame, _ in traceback.walk_tb(excinfo.value.__traceback__)]
    return _is_core_error(excinfo.value) or _last(origins, "user") > _last(origins, "core")


def hides_callers(excinfo: Any) -> bool:
    """Called by pytest: True if torch's frames between core and the user's methods are left out."""
    return hides_frames(excinfo) and "core" in _origins(excinfo.value)


def is_for_pytest() -> bool:
    """True while pytest writes a failure: it formats a cause without frames by its text alone."""
    frame = sys._getframe() if "_pytest" in sys.modules else None
    while frame is not None and frame.f_globals.get("__name__") != "_pytest._code.code":
        frame = frame.f_back
    return frame is not None
