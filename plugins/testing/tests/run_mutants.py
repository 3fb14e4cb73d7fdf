"""Runs the kit on mutants, each on the test that must catch it and on one that it must pass.

python run_mutants.py --json out.json
python run_mutants.py --whole --only ForgetsToAverage   # all tests: those fail that `failures.json` has
python run_mutants.py --record   # all tests of each strategy that `failures.json` doesn't have yet
python run_mutants.py --write mutants.md   # the table, once all are caught, and how many a test catches, for cards
"""

import argparse
import gc
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
from installed_mutants import INSTALLED, RIGHT, RIGHT_LAUNCHER, install_all, write_suites  # noqa: E402
from mutants import MUTANTS  # noqa: E402

import core_testing  # noqa: E402
from core_testing import ConformanceReport, StrategyConformance  # noqa: E402
from core_testing.packaging import PackagingTests  # noqa: E402
from support.checkout import KITS  # noqa: E402

FAILURES = HERE / "failures.json"  # all tests that fail, by the name of a mutant
COUNTS = Path(core_testing.__file__).with_name("mutants.json")
PATIENCE_S = 90
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"


def run(node_ids):
    """Outcome by suite and test."""
    report = ConformanceReport()
    without = ["-p", "no:cacheprovider", "-p", "no:randomly"]
    options = ["-q", "--no-header", "--tb=line", *without, "-c", str(KITS)]
    pytest.main([*options, "--rootdir", "/", *node_ids], plugins=[report])
    return {nodeid.partition("::")[2]: row.outcome for nodeid, row in report.rows.items()}


def run_registered(mutants, whole=False):
    """Those that `kits.py` registers in this process."""
    suites = [(f"{HERE / 'kits.py'}::Test{each.name}", each) for each in mutants]
    if whole:
        be_patient_with(mutants)
        return run([suite for suite, _ in suites])
    return run([f"{suite}::{test}" for suite, each in suites for test in (each.test, each.passes) if test])


def be_patient_with(mutants):
    """Give their ranks more time: a busy machine must not look like a fault."""
    import kits

    for each in mutants:
        getattr(kits, f"Test{each.name}").timeout_s = PATIENCE_S


def run_installed():
    """Those that are found by their metadata: in another process, which sees them on its path."""
    with tempfile.TemporaryDirectory(prefix="core-testing-") as folder:
        site, out = Path(folder) / "site", Path(folder) / "out.json"
        install_all(site)
        write_suites(Path(folder) / "suites.py")
        path = os.pathsep.join([str(site), *sys.path])
        command = [sys.executable, str(HERE / "run_mutants.py"), "--suites", folder, "--json", str(out)]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False)
        outcomes = json.loads(out.read_text())
    return outcomes


def installed_node_ids(folder):
    """The tests that each must fail, and those that right ones must pass."""
    file = Path(folder) / "suites.py"
    failing = [f"{file}::Test_{each.name}::{each.test}" for each in INSTALLED]
    tests = {(each.kind, each.test) for each in INSTALLED}
    right = {"strategy": RIGHT, "launcher": RIGHT_LAUNCHER}
    return failing + sorted(f"{file}::Test_{right[kind].name}::{test}" for kind, test in tests)


def rows(mutants):
    """Name, fault and test of every mutant."""
    registered = [(each.name, each.fault, each.test) for each in mutants]
    return registered + [(each.name, each.fault, each.test) for each in INSTALLED]


def with_table(text, mutants):
    """The page, with the table between its two marks."""
    lines = ["| mutant | what is wrong with it | caught by |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {fault} | `{test}` |" for name, fault, test in rows(mutants)]
    before, _, rest = text.partition(BEGIN)
    return "\n".join([before + BEGIN, *lines, END + rest.partition(END)[2]])


def counts(mutants):
    """How many mutants each test catches, by kind and name of the test, as cards count them.

    All kinds share the tests of packaging, and so what these catch.
    """
    from kits import SUITES

    found = defaultdict(Counter)
    for each in (*mutants, *INSTALLED):
        kinds = SUITES if each.test in vars(PackagingTests) else [each.kind]
        for kind in {kind.removeprefix("differing ") for kind in kinds}:
            found[kind][each.test] += 1
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--suites", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.suites:
        arguments.json.write_text(json.dumps(run(installed_node_ids(arguments.suites))))
        return 0
    chosen = [each for each in MUTANTS if not arguments.only or each.name in arguments.only]
    if arguments.record:
        record([each for each in chosen if each.kind == "strategy" and (arguments.only or each.name not in known())])
        return 0
    outcomes = {} if arguments.only else run_installed()
    outcomes |= run_registered(chosen, arguments.whole)
    if arguments.json:
        arguments.json.write_text(json.dumps(outcomes))
    problems = find_problems(outcomes, chosen, () if arguments.only else INSTALLED)
    problems += find_surprises(outcomes, chosen) if arguments.whole else []
    number = len(chosen) if arguments.only else len(rows(chosen))
    print("\n".join(problems) or f"{number} mutants caught: each fails its test, and passes another one")
    if arguments.write and not problems:
        arguments.write.write_text(with_table(arguments.write.read_text(), chosen))
        COUNTS.write_text(counts(chosen))
    return bool(problems)


def known():
    """All tests that fail, by the name of a mutant."""
    return json.loads(FAILURES.read_text())


def failing(outcomes, mutant):
    """Names of the tests that have failed."""
    suite = f"Test{mutant.name}::"
    return sorted(
        name.removeprefix(suite) for name, outcome in outcomes.items() if name.startswith(suite) and outcome == "failed"
    )


def record(mutants):
    """Run all tests of each, and write down which fail.

    Each in a fork of this process, to which it leaves no thread and no variable. What is the same for all of them is
    known by then: the runs of one device, and what importing the mutants' modules changes.
    """
    modules = {each.plugin.__module__: each for each in mutants}
    imports = [f"{HERE / 'kits.py'}::Test{each.name}::test_import_changes_nothing" for each in modules.values()]
    run([f"{HERE / 'kits.py'}::TestAveraging", *imports])
    gc.collect()
    gc.freeze()  # forks have less to look through
    for each in mutants:
        child = os.fork()
        if child == 0:
            names = failing(run_registered([each], whole=True), each)
            FAILURES.write_text(json.dumps(dict(sorted((known() | {each.name: names}).items())), indent=1) + "\n")
            os._exit(0)
        os.waitpid(child, 0)


def find_surprises(outcomes, mutants):
    """Mutants of which other tests have failed than those that are known to."""
    for each in mutants:
        found, expected = failing(outcomes, each), known().get(each.name, [each.test])
        if found != expected:
            yield f"{each.name} fails {sorted({*found} - {*expected})}, and passes {sorted({*expected} - {*found})}"


def untested():
    """Tests of all kinds that no mutant must fail."""
    from kits import SUITES

    tested = {(each.kind, each.test.partition("[")[0]) for each in (*MUTANTS, *INSTALLED)}
    shared = {name for name in (*vars(PackagingTests), *dir(StrategyConformance)) if name.startswith("test_")}
    for kind, suite in SUITES.items():
        for name in (name for name in dir(suite) if name.startswith("test_")):
            kinds = SUITES if name in shared else [kind]
            if not any((kind, name) in tested for kind in kinds):
                yield f"{kind}: {name}"


def find_problems(outcomes, mutants, installed):
    """Mutants that weren't caught, and those that fail where they must not."""
    expected = {f"Test{each.name}::{each.test}": "failed" for each in mutants}
    expected |= {f"Test{each.name}::{each.passes}": "passed" for each in mutants if each.passes}
    expected |= {f"Test_{each.name}::{each.test}": "failed" for each in installed}
    right = {"strategy": RIGHT, "launcher": RIGHT_LAUNCHER}
    expected |= {f"Test_{right[each.kind].name}::{each.test}": "passed" for each in installed}
    return [
        f"{name} {outcomes.get(name, 'did not run')}, and must have {outcome}"
        for name, outcome in expected.items()
        if outcomes.get(name) != outcome
    ]


if __name__ == "__main__":
    sys.exit(main())
