"""Changes one place of the code after the other, as cosmic-ray does, and runs the tests that should
fail then.

    python tests/by_hand/mutation.py --seed 1 --number 100 > before   # of core and the five largest plugins
    python tests/by_hand/mutation.py --seed 1 --number 100 --list     # which ones: nothing runs
    python tests/by_hand/mutation.py --again before > after           # the same, first by the test that caught each
    python tests/by_hand/mutation.py --seed 1 --only 7 31 --tests tests/cli

It needs `pip install cosmic-ray`, and a clone of its own whose packages are installed editable:
files are changed in place, and put back. It runs the tests of the mutant's area only, so try one
that survives against other tests. Then it needs a test, or a sentence that says why nobody can tell
it from the code. Pick mutants before you write tests. The test that has caught a mutant is named:
one that fails without any mutant catches nothing.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.mutating import apply_mutation
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db

ROOT = Path(__file__).resolve().parents[2]
LARGEST = ("parallel", "lightning", "testing", "deepspeed", "plan")
PACKAGES = ("core", *(f"plugins/{name}/core_{name}" for name in LARGEST))
UNSEEN = ("RemoveDecorator", "BinaryOperator_BitOr")  # for the most part, types
TIMEOUT_S = 1500
NOTHING_FAILED = (0, 4, 5)  # of pytest: all passed, no such test, none selected


def mutants(seed: int, number: int) -> list[tuple[str, str, int, int]]:
    """File, operator, occurrence and line of mutants: of files drawn by their size a place, and of
    it a change.
    """
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    draw = random.Random(seed)
    drawn = draw.choices(files, weights=[file.stat().st_size for file in files], k=number)
    return [mutant for file in drawn if (mutant := one_of(file, draw)) is not None]


def one_of(file: Path, draw: random.Random) -> tuple[str, str, int, int] | None:
    """One mutant of a file; None if it has none."""
    with (
        tempfile.TemporaryDirectory() as folder,
        use_db(Path(folder) / "all.sqlite", WorkDB.Mode.create) as db,
    ):
        init([file], db, {})
        found = [change for item in db.work_items for change in item.mutations]
    places: dict[tuple[int, int], list[tuple[str, str, int, int]]] = {}
    for each in found:
        if not any(part in each.operator_name for part in UNSEEN):
            mutant = (
                str(file.relative_to(ROOT)),
                each.operator_name,
                each.occurrence,
                each.start_pos[0],
            )
            places.setdefault(each.start_pos, []).append(mutant)
    return draw.choice(sorted(places[draw.choice(sorted(places))])) if places else None


def tests_of(path: str) -> list[str]:
    """The folders of tests that are for a file, the nearest first."""
    first, *rooms, _ = Path(path).parts
    if first == "plugins":
        return [f"plugins/{rooms[0]}/tests"]
    if rooms == ["strategies"]:
        return [
            "tests/strategies",
            "plugins/ddp/tests",
            "tests/fabric",
            "plugins/training/tests/test_activation_memory.py",
        ]
    if rooms == ["contract"]:
        return [f"tests/{name}" for name in ("contract", "accelerators", "resolve", "fabric")]
    if rooms == ["session"]:
        return ["tests/session", "tests/fabric", "plugins/training/tests/loops"]
    mirrors = ["/".join(("tests", *rooms[:depth])) for depth in range(len(rooms), 0, -1)]
    return [mirror for mirror in mirrors if (ROOT / mirror).is_dir()] or ["tests"]


def first_of(path: str, operator: str, occurrence: int, areas: list[str]) -> str:
    """The first test that fails with the change, of areas in turn; empty if none does."""
    for area in areas:
        by = caught_by(path, operator, occurrence, [area])
        if by:
            return by
    return ""


def caught_by(path: str, operator: str, occurrence: int, tests: list[str]) -> str:
    """Make the change, run the tests, and put the file back. The first that fails; empty if none
    does.
    """
    file = ROOT / path
    before = file.read_bytes()
    try:
        apply_mutation(file, get_operator(operator)(), occurrence)
        with tempfile.TemporaryFile("w+") as output:
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-n",
                "0",
                "-p",
                "no:randomly",
                *tests,
            ]
            run = subprocess.Popen(
                command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                if run.wait(TIMEOUT_S) in NOTHING_FAILED:
                    return ""
            except subprocess.TimeoutExpired:
                return "no end in time"
            finally:
                if run.poll() is None:
                    os.killpg(run.pid, signal.SIGKILL)
                    run.wait()
            output.seek(0)
            failed = [line.split()[1] for line in output if line.startswith(("FAILED ", "ERROR "))]
            return failed[0] if failed else f"pytest, which ended with {run.returncode}"
    finally:
        file.write_bytes(before)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int)
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--only", type=int, nargs="+")
    parser.add_argument("--tests", nargs="+")
    parser.add_argument("--list", action="store_true", dest="lists")
    parser.add_argument("--again", type=Path, help="what an earlier run has printed")
    asked = parser.parse_args()
    # else a file stays changed, and its tests run on
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    drawn = (
        told_by(asked.again)
        if asked.again
        else [(*each, []) for each in mutants(asked.seed, asked.number)]
    )
    for place, (path, operator, occurrence, line, caught) in enumerate(drawn):
        if asked.only is None or place in asked.only:
            print(place, f"{path}:{line}", operator, occurrence, end=" ", flush=True)
            areas = asked.tests or [*filter(exists, caught), *tests_of(path)]
            by = None if asked.lists else first_of(path, operator, occurrence, areas)
            print({None: "", "": "SURVIVES"}.get(by, f"caught by {by}"), flush=True)


def told_by(output: Path) -> list[tuple[str, str, int, int, list[str]]]:
    """The mutants of an earlier run, each with the test that caught it."""
    found = []
    for row in output.read_text().splitlines():
        _, place, operator, occurrence, *rest = row.split()
        path, line = place.split(":")
        found.append((path, operator, int(occurrence), int(line), rest[2:3]))
    return found


def exists(test: str) -> bool:
    """True if the file of a test is there; pytest says if the test is."""
    return (ROOT / test.partition("::")[0]).is_file()


if __name__ == "__main__":
    main()
