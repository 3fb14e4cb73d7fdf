"""Runs the conformance kit, keeps its results in the packages' cards, and writes these into
docs/support.md.

    python tests/conformance/write_support.py core-ddp core-hpu   # on this machine; what has a simulator, on that
    python tests/conformance/write_support.py core-ddp:ddp_fork   # or one plugin of a package
    python tests/conformance/write_support.py cuda.json           # what another machine's `core check --json` printed
    python tests/conformance/write_support.py report.json         # what `benchmarks/gpu.py` wrote there
    python tests/conformance/write_support.py                     # nothing new: the page as its records are

Each plugin's newest result, on each kind of device, is kept in the card of its package. A run
replaces the results of what it has tested, and leaves the others, with the date on which they were
found.
"""

import argparse
import json
import os
import subprocess
import sys
import textwrap
import tomllib
from collections import defaultdict
from itertools import chain, groupby
from pathlib import Path

from core_testing.cli.card import results_of, write

ROOT = Path(__file__).parents[2]
KINDS = {
    "accelerator": "Accelerators",
    "precision": "Precisions",
    "checkpoint io": "Checkpoints",
    "cluster environment": "Clusters",
    "launcher": "Launchers",
    "logger": "Loggers",
}
OUTCOMES = {"failed": "**fails**", "xfailed": "known to fail"}
GROUNDS = {"cpu": "CPU", "simulated": "simulated", "xla": "CPU, which plays the devices"}
BEGIN, END = "<!-- reports: begin -->", "<!-- reports: end -->"
MOST_TESTS = 1
"""Tests that a row of failures names; it counts the others."""


def _read_facts():
    """Beside each package's tests, `support.toml`: its simulator, what has stand-ins, and what
    needs hardware.
    """
    simulators, stand_ins, needs_hardware = {}, {}, []
    for path in [
        Path(__file__).with_name("support.toml"),
        *sorted(ROOT.glob("plugins/*/tests/support.toml")),
    ]:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
        if simulator := facts.get("simulator"):
            simulators[f"core-{path.parents[1].name}"] = (
                path.parent / simulator["folder"],
                simulator["variables"],
            )
        for each in facts.get("stand_ins", ()):
            stand_ins[each["kind"], each["alias"]] = (each["state"], each.get("tests", ""))
        needs_hardware += [
            (each["what"], each["needs"], each["why"]) for each in facts.get("needs_hardware", ())
        ]
    return simulators, stand_ins, needs_hardware


SIMULATORS, STAND_INS, NEEDS_HARDWARE = _read_facts()

HEAD = """\
The [conformance kit](conformance.md) has found these results. "Tests" are those that passed, of those that ran;
`core check ALIAS` runs them on your machine.

{machines}

- **hardware**, **CPU**: the kit has run it on the real device, or on a CPU in real processes.
- **simulated**: the kit ran on a stand-in for the device or with the variables of a scheduler; or other tests did.
- **needs hardware**: it has no stand-in ([why](#what-needs-hardware)).
- **detection**: tests made torch report the device; nothing has been computed on it.
"""


def check(name):
    """The report of `core check` on a package or a plugin of it; on simulated devices if it has
    some.
    """
    folder, variables = SIMULATORS.get(name.partition(":")[0], (None, {}))
    environment = os.environ | variables
    for variable, path in (("PYTHONPATH", folder), ("PATH", folder / "bin")) if folder else ():
        environment[variable] = os.pathsep.join(filter(None, [str(path), os.environ.get(variable)]))
    command = [sys.executable, "-m", "core", "check", name, "--json"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        sys.exit(f"core check {name} has found nothing; it says why above.")
    return json.loads(done.stdout)


def card_of(package, root):
    """Where the card of a distribution of ours lies."""
    name = package.removeprefix("core-")
    return (
        root / "core" / "card.json"
        if name == "training"
        else root / f"plugins/{name}/core_{name}/card.json"
    )


def cards_below(root):
    """All of them, core's first."""
    return [*root.glob("core/card.json"), *sorted(root.glob("plugins/*/core_*/card.json"))]


def state_of(record):
    """`hardware`, `CPU`, `simulated`; where the kit could not run it, what other tests have
    shown.
    """
    needs_device = record["kind"] in ("accelerator", "precision", "strategy")
    if not (record["met_device"] if needs_device else any(record["outcomes"].values())):
        state, folder = STAND_INS.get((record["kind"], record["alias"]), ("not run", ""))
        return f"{state} ([tests](../{folder}))" if folder else state
    return GROUNDS.get(record["ground"], f"hardware: {record['ground']}")


def counts(record):
    passed, failed, known = (record["outcomes"][name] for name in ("passed", "failed", "xfailed"))
    number = f"{passed} of {passed + failed + known}" if passed + failed + known else "none ran"
    return (
        number
        + (f", **{failed} failed**" if failed else "")
        + (f", {known} known to fail" if known else "")
    )


def table(headers, rows):
    lines = ["| " + " | ".join(cells) + " |" for cells in (headers, ["---"] * len(headers), *rows)]
    return "\n".join(line.replace("  |", " |") for line in lines)


LETTERS = {
    "BIT_EXACT_RESUME": "B",
    "COLLECTIVES": "C",
    "COMPILED_STEP": "D",
    "COMPUTES_LOSS": "L",
    "ELASTIC": "E",
    "INFERENCE_MODE": "I",
    "JOINT_SETUP": "J",
    "MAKES_OPTIMIZERS": "K",
    "MANUAL_OPTIMIZATION": "M",
    "NO_SYNC": "N",
    "OWNS_ACCUMULATION": "A",
    "OWNS_CLIPPING": "P",
    "OWNS_GRADIENTS": "G",
    "OWNS_SCHEDULER": "Q",
    "OWNS_STEP": "T",
    "REPLICATED_PARAMETERS": "R",
    "SEVERAL_MODULES": "S",
    "SEVERAL_OPTIMIZERS": "O",
    "SHARDED_STATE": "H",
    "CLIP_BY_VALUE": "V",
    "WEIGHTED_LOSSES": "W",
}
"""One letter a capability, for the column of those that are proven."""

COLUMNS = ["alias", "package", "state", "tests"]


def joined(rows):
    """Rows that differ in their alias only, as one."""
    aliases = defaultdict(list)
    for alias, *cells in rows:
        aliases[tuple(cells)].append(alias)
    return [[", ".join(names), *cells] for cells, names in aliases.items()]


def row(record):
    return [f"`{record['alias']}`", record["provider"], state_of(record), counts(record)]


def capabilities(record):
    """Those that are proven, and those that are declared and aren't."""
    by_state = defaultdict(list)
    for name, state in sorted(record["capabilities"].items()):
        by_state[state].append(f"`{name}`")
    failed = [f"{name} **fails**" for name in by_state["failed"]]
    proven = "".join(sorted(LETTERS[name.strip("`")] for name in by_state["proven"]))
    return [proven, ", ".join(failed + by_state["not tested"])]


def strategies(records):
    """Those that ran the whole suite with their capabilities, then presets."""
    whole = [row(record) + capabilities(record) for record in records if record["is_whole"]]
    presets = [row(record) for record in records if not record["is_whole"]]
    yield "### Strategies\n"
    yield table([*COLUMNS, "proven", "declared, not proven here"], joined(whole))
    proven = {
        name
        for record in records
        for name, state in record["capabilities"].items()
        if state == "proven"
    }
    if proven:
        letters = ", ".join(f"{LETTERS[name]} `{name}`" for name in sorted(proven, key=LETTERS.get))
        yield "\n" + textwrap.fill(f"Proven: {letters}.", 128)
    yield ""
    if presets:
        yield "These set options of a strategy above, or are tested by a short run only:\n"
        yield table(COLUMNS, joined(presets))
        yield ""


def parts(records, kind, title):
    rows = [row(record) for record in records if record["kind"] == kind]
    if rows:
        yield f"### {title}\n"
        yield table(COLUMNS, joined(rows))
        yield ""


def failures(records):
    found = defaultdict(list)
    for record in records:
        for outcome, reason, test in record["failures"]:
            found[record["alias"], outcome, reason.replace("|", r"\|")].append(f"`{test}`")
    rows = [
        [f"`{alias}`", OUTCOMES[outcome], listed(names), why]
        for (alias, outcome, why), names in found.items()
    ]
    yield "### What fails\n"
    yield table(["alias", "", "tests", "why"], joined(rows)) if rows else "Nothing."


def listed(names):
    shown = ", ".join(names[:MOST_TESTS])
    return f"{shown} and {len(names) - MOST_TESTS} more" if len(names) > MOST_TESTS else shown


def machine(record):
    return f"- {record['date']}: " + ", ".join(
        f"{name} {version}" for name, version in record["versions"].items()
    )


def page(records):
    yield HEAD.format(machines="\n".join(sorted({machine(record) for record in records})))
    yield from strategies([record for record in records if record["kind"] == "strategy"])
    for kind, title in KINDS.items():
        yield from parts(records, kind, title)
    yield "### What needs hardware\n"
    yield table(["what", "needs", "why"], NEEDS_HARDWARE)
    yield ""
    yield from failures(records)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="*", metavar="PACKAGE | PACKAGE:ALIAS | REPORT.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "support.md")
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the folder that holds core and plugins"
    )
    arguments = parser.parse_args()
    for source in arguments.sources:
        report = json.loads(Path(source).read_text()) if source.endswith(".json") else check(source)
        if report.get("small"):
            sys.exit(f"{source} is of a run on a CPU, which leaves most tests out.")
        for each in report.get("kit", [report]):  # one of `benchmarks/gpu.py` has several
            for package, found in groupby(results_of(each), lambda result: result["provider"]):
                write(card_of(package, arguments.root), found)
    cards = [
        json.loads(path.read_text(encoding="utf-8"))["results"]
        for path in cards_below(arguments.root)
    ]
    records = list(chain.from_iterable(cards))
    before, _, rest = arguments.page.read_text(encoding="utf-8").partition(BEGIN)
    reports = "\n".join([BEGIN, *page(records)]).rstrip() + f"\n{END}"
    arguments.page.write_text(before + reports + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
