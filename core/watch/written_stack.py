"""The user's line in what faulthandler has written."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+|\?\?\?) in (?P<name>.+)$', re.MULTILINE)
_LIBRARIES = f"{Path(__file__).parents[1]}/"


def line_in(text: str) -> str:
    """The innermost line of the user's in the last dump's watched thread, which is the one that has such lines."""
    last = text.rpartition("\nCurrent thread")[2] or text
    stdlib = sysconfig.get_paths()["stdlib"] + "/"
    for match in _FRAME.finditer(last):
        path = match["file"]
        if "site-packages" not in path and not path.startswith(("<frozen ", _LIBRARIES, stdlib)):
            return f"{path}:{match['line']} in {match['name']}"
    return ""
