"""The error of a rank that torchrun has started: shown once a node, and written to the file that
torchrun reads.

torchrun names a file to each rank, in a folder that the ranks of a node share and that is new with
each start of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from pathlib import Path

_VARIABLE = "TORCHELASTIC_ERROR_FILE"
_MARK = "core-shown-"


def is_rank() -> bool:
    """True in a process that torchrun has started."""
    return bool(os.environ.get(_VARIABLE))


def show_once_per_node(text: str) -> None:
    """Write a text to stderr, unless another rank of this node has written it to the same place.

    Ranks that write to files of their own show all of it, each in its own.
    """
    try:
        place = os.fstat(sys.stderr.fileno())
        written = f"{place.st_dev} {place.st_ino} {text}".encode(errors="replace")
        # By this file ranks of a node know that this text was written to this stderr.
        name = f"{_MARK}{hashlib.sha256(written).hexdigest()[:32]}"
        with open(os.path.join(_folder(), name), "x", encoding="utf-8") as mark:
            mark.write(os.environ["RANK"])
    except FileExistsError:
        return
    except (OSError, ValueError, LookupError):  # no torchrun, no such folder, no such stream
        pass
    sys.stderr.write(text)
    sys.stderr.flush()


def is_error_shown(timeout_s: float) -> bool:
    """True if another rank of this node has shown an error, or does so within a time."""
    if not is_rank():
        return False
    end_s = time.monotonic() + timeout_s
    while not any(name.startswith(_MARK) for name in _names()):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


def first_to_show(folder: str) -> int | None:
    """The rank that was the first to show an error in a run whose ranks share this folder; None if
    none has.
    """
    marks = [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(_MARK)]
    with contextlib.suppress(OSError, ValueError):
        return int(Path(min(marks, key=os.path.getmtime)).read_text(encoding="utf-8"))
    return None


def write_error_file(message: str) -> None:
    """Write the error of this rank into the file from which torchrun makes its summary, if there is
    none yet.
    """
    path = os.environ.get(_VARIABLE)
    if not path or os.path.exists(path):
        return
    extra = {"py_callstack": message, "timestamp": str(int(time.time()))}
    with contextlib.suppress(OSError):
        # torchrun may end this process at any time, and fails itself at half a file.
        with open(f"{path}.begun", "w", encoding="utf-8") as file:
            json.dump({"message": {"message": message, "extraInfo": extra}}, file)
        os.replace(file.name, path)


def _folder() -> str:
    return os.path.dirname(os.path.dirname(os.environ[_VARIABLE]))


def _names() -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(_folder())
    return []
