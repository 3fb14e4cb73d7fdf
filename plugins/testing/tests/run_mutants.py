"""Runs the kit on mutants, each on the test that must catch it and on one that it must pass.

python run_mutants.py --json out.json
python run_mutants.py ForgetsToAverage StopsAveraging
python run_mutants.py --write mutants.md   # the table, once all are caught, and how many a test
catches, for cards
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "tests")]

import pytest  # noqa: E402
from installed_mutants import INSTALLED, install_all, right, write_suites  # noqa: E402
from kits import SUITES  # noqa: E402
from mutants import MUTANTS  # noqa: E402

import core_testing  # noqa: E402
from core_testing import ConformanceReport, StrategyConformance  # noqa: E402
from core_testing.packaging import PackagingTests  # noqa: E402
from support.checkout import KITS  # noqa: E402

COUNTS = Path(core_testing.__file__).with_name("mutants.json")
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"


def run(file, tests):
    """Outcome by suite and test, of those of a file."""
    report = ConformanceReport()
    without = ["-p", "no:cacheprovider", "-p", "no:randomly"]
    options = ["-q", "--no-header", "--tb=line", *without, "-c", str(KITS)]
    pytest.main(
        [*options, "--rootdir", "/", *(f"{file}::{test}" for test in tests)], plugins=[report]
    )
    return {nodeid.partition("::")[2]: row.outcome for nodeid, row in report.rows.items()}


def run_installed():
    """Those that are found by their metadata: in another process, which sees them on its path."""
    with tempfile.TemporaryDirectory(prefix="core-testing-") as folder:
        site, out = Path(folder) / "site", Path(folder) / "out.json"
        install_all(site)
        write_suites(Path(folder) / "suites.py")
        path = os.pathsep.join([str(site), *sys.path])
        command = [
            sys.executable,
            str(HERE / "run_mutants.py"),
            "--suites",
            folder,
            "--json",
            str(out),
        ]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False)
        return json.loads(out.read_text())


def expected_of(mutants, installed=()):
    """What a test must have done, by suite and test: failed a mutant, and passed it or what is
    right.
    """
    failed = [f"Test{each.name}::{each.test}" for each in mutants]
    failed += [f"Test_{each.name}::{each.test}" for each in installed]
    passed = [f"Test{each.name}::{each.passes}" for each in mutants if each.passes]
    passed += [f"Test_{right(each.kind).name}::{each.test}" for each in installed]
    return dict.fromkeys(failed, "failed") | dict.fromkeys(passed, "passed")


def find_problems(outcomes, mutants, installed):
    """Mutants that weren't caught, and those that fail where they must not."""
    return [
        f"{name} {outcomes.get(name, 'did not run')}, and must have {outcome}"
        for name, outcome in expected_of(mutants, installed).items()
        if outcomes.get(name) != outcome
    ]


def with_table(text):
    """The page, with the table between its two marks."""
    lines = ["| mutant | what is wrong with it | caught by |", "| --- | --- | --- |"]
    lines += [
        f"| `{each.name}` | {each.fault} | `{each.test}` |" for each in (*MUTANTS, *INSTALLED)
    ]
    before, _, rest = text.partition(BEGIN)
    return "\n".join([before + BEGIN, *lines, END + rest.partition(END)[2]])


def counts():
    """How many mutants each test catches, by kind and name of the test, as cards count them.

    All kinds share the tests of packaging, and so what these catch.
    """
    found = defaultdict(Counter)
    for each in (*MUTANTS, *INSTALLED):
        kinds = SUITES if each.test in vars(PackagingTests) else [each.kind]
        for kind in {kind.removeprefix("differing ") for kind in kinds}:
            found[kind][each.test] += 1
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def untested():
    """Tests of all kinds that no mutant must fail."""
    tested = {(each.kind, each.test.partition("[")[0]) for each in (*MUTANTS, *INSTALLED)}
    shared = {
        name
        for name in (*vars(PackagingTests), *dir(StrategyConformance))
        if name.startswith("test_")
    }
    for kind, suite in SUITES.items():
        for name in (name for name in dir(suite) if name.startswith("test_")):
            kinds = SUITES if name in shared else [kind]
            if not any((kind, name) in tested for kind in kinds):
                yield f"{kind}: {name}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="of those to run; all of them otherwise")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--suites", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.suites:
        outcomes = run(Path(arguments.suites, "suites.py"), expected_of((), INSTALLED))
        arguments.json.write_text(json.dumps(outcomes))
        return 0
    chosen = [each for each in MUTANTS if each.name in arguments.names or not arguments.names]
    installed = () if arguments.names else INSTALLED
    outcomes = run(HERE / "kits.py", expected_of(chosen)) | (run_installed() if installed else {})
    if arguments.json:
        arguments.json.write_text(json.dumps(outcomes))
    problems = find_problems(outcomes, chosen, installed)
    number = len(chosen) + len(installed)
    print(
        "\n".join(problems)
        or f"{number} mutants caught: each fails its test, and passes another one"
    )
    if arguments.write and not problems:
        arguments.write.write_text(with_table(arguments.write.read_text()))
        COUNTS.write_text(counts())
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
