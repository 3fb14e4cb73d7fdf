"""The user's line in a stack that faulthandler has written."""

from __future__ import annotations

import re

from core.watch.users_code import is_users_file

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+|\?\?\?) in (?P<name>.+)$', re.MULTILINE)
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")


def line_in(text: str, thread: int) -> str:
    """The innermost line of the user's code in the last stack of the thread with this Python identifier."""
    _, is_there, stack = text.rpartition(f"hread 0x{thread:016x}")
    for match in _FRAME.finditer(stack.partition("\n\n")[0] if is_there else ""):
        path = _ESCAPED.sub(lambda found: chr(int(found[found.lastindex or 1], 16)), match["file"])
        if is_users_file(path):
            return f"{path}:{match['line']} in {match['name']}"
    return ""
