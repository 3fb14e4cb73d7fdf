"""Runs tests in random orders beside busy processes, and shows what failed how often.

    python tests/by_hand/storm.py FOLDER --rounds 4 --beside 4 -- tests plugins
    python tests/by_hand/storm.py FOLDER --rounds 1 --beside 4 -- -m slow tests plugins
    python tests/by_hand/storm.py FOLDER --rounds 9 --beside 10 -- tests/watch tests/launch/test_multiprocessing.py

A round is a file in FOLDER, named after the commit, what pytest was asked, and the seed of the
order. It is there once the round has ended: called again, this goes on with the rounds that are
missing, and counts those that are there.
"""

import argparse
import hashlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--beside", type=int, default=10, help="number of busy processes")
    parser.add_argument("pytest", nargs="+", help="what pytest is asked, after --")
    asked = parser.parse_args()
    commit = subprocess.check_output(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True
    ).strip()
    what = hashlib.sha256(" ".join([*asked.pytest, str(asked.beside)]).encode()).hexdigest()[:8]
    asked.folder.mkdir(parents=True, exist_ok=True)
    files = [
        asked.folder.resolve() / f"{commit}-{what}-{seed}.xml"
        for seed in range(1, asked.rounds + 1)
    ]
    for seed, file in enumerate(files, 1):
        if not file.exists():
            with busy(asked.beside):
                run(asked.pytest, seed, file)
    print(table(files))


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Processes that compute, as long as the context lasts, or this process."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(pytest: list[str], seed: int, file: Path) -> None:
    order = [
        f"--randomly-seed={seed}",
        "--randomly-dont-reset-seed",
        "--dist",
        "loadscope",
        "-n",
        "3",
    ]
    unfinished = file.with_suffix(".part")
    command = [sys.executable, "-m", "pytest", "-q", *order, f"--junitxml={unfinished}", *pytest]
    with file.with_suffix(".log").open("w") as log:
        subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    unfinished.rename(file)


def table(files: list[Path]) -> str:
    """How many tests passed in each round, and what failed in how many of them."""
    lines, failed = (
        ["| round | tests | skipped | failed | seconds |", "| --- | --- | --- | --- | --- |"],
        Counter(),
    )
    for file in files:
        (suite,) = ElementTree.parse(file).getroot().iter("testsuite")
        wrong = [
            case
            for case in suite.iter("testcase")
            if {"failure", "error"} & {child.tag for child in case}
        ]
        failed.update(f"{case.get('classname')}::{case.get('name')}" for case in wrong)
        counts = " | ".join(str(suite.get(name)) for name in ("tests", "skipped"))
        lines.append(f"| {file.stem} | {counts} | {len(wrong)} | {suite.get('time')} |")
    lines += ["", *(f"{number} of {len(files)}: {name}" for name, number in failed.most_common())]
    return "\n".join(lines if failed else [*lines, "nothing failed"])


if __name__ == "__main__":
    main()
