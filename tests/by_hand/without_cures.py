"""Takes the cure of each trap out of its plugin, and runs the test that must fail then.

    python tests/by_hand/without_cures.py fairscale bagua        # plugins whose libraries are in this environment
    python tests/by_hand/without_cures.py ray --only echo        # those whose text has this in it
    python tests/by_hand/without_cures.py --write                # the tables of the plugins' READMEs; runs nothing

The plugin is changed in a copy, which comes first on the path of a process of its own. A test that passes without the
cure, or fails with it (which is looked at with `--with-cures`), is a fault of the test.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import groupby
from pathlib import Path

from traps import TRAPS, Trap

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- traps: begin -->", "<!-- traps: end -->"
TIMEOUT_S = 280


def source_of(trap: Trap) -> Path:
    return ROOT / "plugins" / trap.plugin / f"core_{trap.plugin}" / trap.file


def without_cure(trap: Trap, folder: Path) -> None:
    """Put a copy of the plugin's package into a folder, without the cure."""
    package = source_of(trap).parents[trap.file.count("/")]
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    source = folder / package.name / trap.file
    text = source.read_text(encoding="utf-8")
    assert text.count(trap.cure) == 1, f"{trap.file} has {text.count(trap.cure)} times: {trap.cure}"
    source.write_text(text.replace(trap.cure, trap.without), encoding="utf-8")


def run(trap: Trap, folder: Path, *, is_cured: bool) -> tuple[bool, str]:
    """True if the test has failed, and the first line of its output."""
    if not is_cured:
        without_cure(trap, folder)
    options = ["-c", str(ROOT / "pyproject.toml"), "-q", "-m", "", "--tb=short", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, f"{ROOT}/plugins/{trap.plugin}/tests/{trap.test}"]
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with (
        tempfile.TemporaryFile("w+") as file,
        subprocess.Popen(command, cwd=folder, env=variables, stdout=file, stderr=file, start_new_session=True) as test,
    ):
        try:
            code = test.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(test.pid, signal.SIGKILL)
            return True, f"hangs, and was ended after {TIMEOUT_S} s"
        file.seek(0)
        output = file.read()
    counted = re.search(r"^(\d+ (?:passed|failed|error).*) in ", output, re.MULTILINE)
    if counted is None or code not in (0, 1):
        raise RuntimeError(f"{trap.test} did not run:\n{output}")
    said = re.findall(r"^E +(.*)", output, re.MULTILINE)
    return code == 1, f"{counted[1]}: {said[0][:160] if said else ''}"


def try_all(traps: list[Trap], *, is_cured: bool) -> list[Trap]:
    """Those whose test has done what it mustn't."""
    wrong = []
    for number, trap in enumerate(traps, 1):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="without-cure-") as folder:
            has_failed, said = run(trap, Path(folder), is_cured=is_cured)
        is_wrong = has_failed == is_cured
        wrong += [trap] if is_wrong else []
        mark = "WRONG" if is_wrong else "as it must"
        print(f"{number} of {len(traps)}, {time.monotonic() - began:.0f} s, {mark}: {trap.library}: {trap.what}")
        print(f"    {trap.test}\n    {said}", flush=True)
    return wrong


def readmes() -> dict[Path, list[Trap]]:
    """The README of each plugin that has traps, and those."""
    by_plugin = groupby(TRAPS, key=lambda trap: trap.plugin)
    return {ROOT / "plugins" / plugin / "README.md": list(traps) for plugin, traps in by_plugin}


def table(traps: list[Trap]) -> str:
    """The traps of one plugin."""
    lines = [BEGIN, "| without the cure | cure in | test that fails |", "| --- | --- | --- |"]
    for trap in traps:
        file = source_of(trap).relative_to(ROOT / "plugins" / trap.plugin)
        test = trap.test.partition("::")
        slow = ", slow" * trap.is_slow
        lines.append(f"| {trap.what} | [{trap.file}]({file}) | `{test[2]}` in [{test[0]}](tests/{test[0]}){slow} |")
    return "\n".join([*lines, END])


def with_table(text: str, traps: list[Trap]) -> str:
    """The README, with the table between its two marks."""
    before, _, rest = text.partition(BEGIN)
    return before + table(traps) + rest.partition(END)[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plugins", nargs="*", choices=[*dict.fromkeys(trap.plugin for trap in TRAPS), []])
    parser.add_argument("--only", default="")
    parser.add_argument("--with-cures", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write:
        for page, traps in readmes().items():
            page.write_text(with_table(page.read_text(encoding="utf-8"), traps), encoding="utf-8")
        return 0
    words = arguments.only.lower()
    traps = [trap for trap in TRAPS if trap.plugin in arguments.plugins and words in f"{trap.what} {trap.test}".lower()]
    wrong = try_all(traps, is_cured=arguments.with_cures)
    print(f"{len(traps) - len(wrong)} of {len(traps)} as they must")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
