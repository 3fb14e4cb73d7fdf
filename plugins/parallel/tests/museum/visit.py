"""Starts core-parallel with each of these bugs, and says what finds it.

python visit.py                       # all
python visit.py local-counts          # some, with the text of each error
python visit.py --write museum.md     # the table
"""

import argparse
import re
import sys
import time
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

import torch  # noqa: E402
from language import ALONE, on, train  # noqa: E402
from museum.exhibits import EXHIBITS  # noqa: E402

from core import WorkerError  # noqa: E402
from core_testing.cases import CASES  # noqa: E402

BEGIN, END = "<!-- bugs: begin -->", "<!-- bugs: end -->"
REFUSED = re.compile(
    r"failed with core\.contract\.errors\.(?:Module|Configuration)Error: (.*)", re.S
)
BY_TYPES = re.compile(
    "At the first difference|would have other gradients|drops some of what all|computes .* of a rank's own classes|"
    "changes .* in itself, and to other values where|isn't the mean of those for its"
)
"""What errors say that follow from marks; those of other checks say what these have seen."""
_TOLERANCE = 1e-9


def what_finds(exhibit):
    """`"types"`, or `"a check"`, and what the error says; or `"kit"`, `"nothing"` or `"crash"`."""
    expected = ALONE.run(partial(_trained, exhibit))[0]
    try:
        with exhibit.faulty():
            found = on(**exhibit.mesh).run(partial(_trained, exhibit))[0]
    except WorkerError as error:
        refused = REFUSED.search(str(error))
        if refused is None:
            return "crash", str(error)
        return "types" if BY_TYPES.search(refused[1]) else "a check", refused[1]
    off = _largest(found, expected)
    told = f"weights differ by {off:.1e}"
    if off < _TOLERANCE:
        return "right", told
    if exhibit.kit is not None and _fails_the_kit(exhibit):
        return "kit", told
    return "nothing", told


def is_right_without(exhibit):
    """True if what an exhibit replaces is right: nothing refuses its program, and weights are those
    of one device.
    """
    expected = ALONE.run(partial(_trained, exhibit))[0]
    return _largest(on(**exhibit.mesh).run(partial(_trained, exhibit))[0], expected) < _TOLERANCE


def _largest(found, expected):
    return max(float((found[name] - expected[name]).abs().max()) for name in expected)


def _trained(exhibit, rank):
    def make():
        module = exhibit.make()
        # unlike Adam, it sees a gradient that is twice as large
        module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=0.1)
        return module

    return train(rank, make, max_steps=4, **exhibit.options)[0]


def _fails_the_kit(exhibit):
    suite, test = exhibit.kit
    case = next(case for case in CASES if case.name == test)
    with exhibit.faulty():
        try:
            suite().test_training_equals_one_device(case)
        except AssertionError:
            return True
    return False


def _row(exhibit, found):
    layout = ", ".join(
        f"{name}={value}" for name, value in exhibit.mesh.items() if name != "expert_plan"
    )
    return f"| `{exhibit.name}` | {exhibit.thread} | {exhibit.wrong} | {layout} | {found} |"


def with_table(text, found):
    """The page, with the table between its two marks."""
    lines = [
        "| bug | thread | what is wrong | layout | found by |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [_row(one, found[one.name]) for one in EXHIBITS]
    before, _, rest = text.partition(BEGIN)
    return "\n".join([before + BEGIN, *lines, END + rest.partition(END)[2]])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="of those to run; all of them otherwise")
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for one in EXHIBITS:
        if arguments.names and one.name not in arguments.names:
            continue
        began = time.monotonic()
        found[one.name], told = what_finds(one)
        shown = told if arguments.names else told[:150]
        print(
            f"{one.name:32} {found[one.name]:8} {time.monotonic() - began:4.1f} s  {shown}",
            flush=True,
        )
    if arguments.write:
        arguments.write.write_text(with_table(arguments.write.read_text(), found))
    return int(any(one not in ("types", "a check", "kit") for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
