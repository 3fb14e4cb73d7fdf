"""The lines of a file that hold code."""

import functools
import tokenize

_BEFORE = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
"""Tokens before a statement."""


@functools.cache
def code_lines(path):
    """The number of lines that hold more than a comment or a docstring."""
    lines, is_start = set(), True
    with open(path, "rb") as file:
        for token in tokenize.tokenize(file.readline):
            is_between = token.type in (tokenize.COMMENT, tokenize.NL)
            if (
                token.type not in _BEFORE
                and not is_between
                and not (token.type == tokenize.STRING and is_start)
            ):
                lines |= set(range(token.start[0], token.end[0] + 1))
            is_start = token.type in _BEFORE or (is_between and is_start)
    return len(lines)
