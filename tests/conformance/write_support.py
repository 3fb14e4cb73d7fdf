"""Writes docs/support.md from reports of the conformance kit, each of one machine:

core check --all --json > cpu.json
core check --all --accelerator cuda --num-processes 1 --json > cuda.json   # on a machine with a GPU
python tests/conformance/write_support.py docs/support.md cpu.json cuda.json
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

KINDS = {
    "accelerator": "Accelerators",
    "precision": "Precisions",
    "checkpoint io": "Checkpoints",
    "cluster environment": "Clusters",
    "launcher": "Launchers",
    "logger": "Loggers",
}
OUTCOMES = {"failed": "**fails**", "xfailed": "known to fail"}
MARKS = {"proven": "yes", "failed": "**no**", "not declared": "", "not tested": "·"}

# What other tests run with a stand-in for the hardware, where the kit could not run here.
STAND_INS = {
    ("accelerator", "cuda"): "tests/accelerators",
    ("accelerator", "mps"): "tests/accelerators",
    ("precision", "16_mixed"): "tests/precision",
    ("precision", "16"): "tests/precision",
    ("strategy", "dp"): "plugins/dp/tests",
    ("strategy", "ddp2"): "plugins/dp/tests",
}
# Tests that show that a device is there; the others pass without one too.
DEVICE_TESTS = ("test_computes", "test_trains", "test_training_equals_one_device")

HEAD = """\
# What has been proven

The [conformance kit](conformance.md) has been run on what is listed here; what is not listed was not. Written by
`tests/conformance/write_support.py`, from the reports of:

{machines}

- **hardware**: the kit has run it on the real device.
- **CPU**: the kit has run it on a CPU, in real processes.
- **simulated**: the kit gave it the variables of a scheduler, or other tests a stand-in for the device.

"Tests" are those that passed, of those that ran. `core check ALIAS` runs them on your machine.
"""


def read(files):
    """Reports, and their suites; the last one of a plugin on one kind of device."""
    reports = [json.loads(Path(file).read_text()) for file in files]
    suites = [suite for report in reports for suite in report["suites"]]
    newest = {(suite["kind"], suite["alias"], suite["provider"], suite["ground"]): suite for suite in suites}
    return reports, list(newest.values())


def state_of(suite):
    """`hardware`, `CPU`, `simulated`, or nothing where the kit could not run it."""
    ran = [test for test in suite["tests"] if test["outcome"] in ("passed", "failed", "xfailed")]
    needs_device = suite["kind"] in ("accelerator", "precision", "strategy")
    if needs_device:
        ran = [test for test in ran if test["name"].partition("[")[0] in DEVICE_TESTS]
    if not ran:
        stand_in = STAND_INS.get((suite["kind"], suite["alias"]))
        return f"simulated ([tests](../{stand_in}))" if stand_in else "not run"
    return {"cpu": "CPU", "simulated": "simulated"}.get(suite["ground"], f"hardware: {suite['ground']}")


def counts(suite):
    outcomes = [test["outcome"] for test in suite["tests"]]
    failed, known = outcomes.count("failed"), outcomes.count("xfailed")
    number = f"{outcomes.count('passed')} of {len(outcomes) - outcomes.count('skipped')}"
    return number + (f", **{failed} failed**" if failed else "") + (f", {known} known to fail" if known else "")


def is_whole(suite):
    """Whether it is the whole suite of a strategy, and not the smoke case of a preset."""
    return any(test["name"].startswith("test_training_equals_one_device") for test in suite["tests"])


def table(headers, rows):
    lines = ["| " + " | ".join(cells) + " |" for cells in (headers, ["---"] * len(headers), *rows)]
    return "\n".join(line.replace("  |", " |") for line in lines)


def strategies(suites):
    """Those that ran the whole suite with their capabilities, then presets."""
    whole = [suite for suite in suites if is_whole(suite)]
    names = sorted(
        {name for suite in whole for name, state in suite["capabilities"].items() if state != "not declared"}
    )
    titles = [f"`{name}`" for name in names]
    rows = [
        [f"`{suite['alias']}`", suite["provider"], state_of(suite), counts(suite)]
        + [MARKS[suite["capabilities"].get(name, "not declared")] for name in names]
        for suite in whole
    ]
    presets = [
        [f"`{suite['alias']}`", suite["provider"], state_of(suite), counts(suite)]
        for suite in suites
        if not is_whole(suite)
    ]
    yield "## Strategies\n"
    yield table(["alias", "package", "state", "tests", *titles], rows)
    yield "\nyes: declared and proven. **no**: a test fails, see below. ·: declared, and not tested here. Nothing: not"
    yield "declared, so that the core doesn't use it.\n"
    if presets:
        yield "These set options of one above, and are tested by a short run:\n"
        yield table(["alias", "package", "state", "tests"], presets)
        yield ""


def parts(suites, kind, title):
    rows = [
        [f"`{suite['alias']}`", suite["provider"], state_of(suite), counts(suite)]
        for suite in suites
        if suite["kind"] == kind
    ]
    if rows:
        yield f"## {title}\n"
        yield table(["alias", "package", "state", "tests"], rows)
        yield ""


def failures(suites):
    found = defaultdict(list)
    for suite in suites:
        for test in suite["tests"]:
            if test["outcome"] in ("failed", "xfailed"):
                reason = test["reason"].replace("|", r"\|").partition("\n")[0]
                found[suite["alias"], test["outcome"], reason].append(f"`{test['name']}`")
    rows = [[f"`{alias}`", OUTCOMES[outcome], ", ".join(names), why] for (alias, outcome, why), names in found.items()]
    yield "## What fails\n"
    yield table(["alias", "", "tests", "why"], rows) if rows else "Nothing."


def page(reports, suites):
    machines = [
        f"- {report['date']}: " + ", ".join(f"{name} {version}" for name, version in report["versions"].items())
        for report in reports
    ]
    yield HEAD.format(machines="\n".join(dict.fromkeys(machines)))
    yield from strategies([suite for suite in suites if suite["kind"] == "strategy"])
    for kind, title in KINDS.items():
        yield from parts(suites, kind, title)
    yield from failures(suites)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("reports", nargs="+", type=Path)
    arguments = parser.parse_args()
    reports, suites = read(arguments.reports)
    arguments.page.write_text("\n".join(page(reports, suites)).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
