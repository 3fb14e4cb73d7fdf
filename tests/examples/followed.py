"""A page that is followed by the letter: the files that it shows, its commands, and what they
print.

A block below a line that ends in a path and a colon is that file. In a console block, lines that
begin with `$` are commands, and the others what they print: `...` in a line stands for any text,
and alone for any lines; blanks count as one. Numbers in lines that tell a time stand for any.
"""

import re

from support.printed import lines_of

BLOCK = re.compile(
    r"^(?:[^\n]*`(?P<path>[\w./-]+)`:\n\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
CLOCK = re.compile(r"\b\d+:\d\d\b")


def steps(page):
    """("file", path, content) and ("command", command, what is shown of its output), in order."""
    for block in BLOCK.finditer(page):
        if block["path"] and block["language"] != "console":
            yield "file", block["path"], block["text"]
        elif block["language"] == "console":
            for part in re.split(r"^\$ ", block["text"], flags=re.M)[1:]:
                command, _, shown = part.partition("\n")
                yield "command", command, shown


def prints(shown, output):
    """Whether an output is what is shown of it."""
    return pattern(shown).fullmatch("".join(f"{line}\n" for line in words(output))) is not None


def pattern(shown):
    """A regular expression for what is shown, over lines of words."""
    parts = []
    for line in words(shown):
        text = re.escape(line).replace(r"\.\.\.", ".*").replace(r"\ ", " ")
        parts.append(r"(?:.*\n)*?" if line == "..." else f"{text}\n")
    return re.compile("".join(parts))


def words(text):
    lines = (" ".join(line.split()) for line in lines_of(text) if line.strip())
    return [re.sub(r"[\d.e-]+", "#", line) if CLOCK.search(line) else line for line in lines]
