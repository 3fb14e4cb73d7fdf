"""Imports plugins in child processes, where one that hangs, exits or kills the interpreter does no harm."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.registry import Row

# The child imports what this process would: the same path, without the folder that it happens to start in.
_CHILD = """
import json, sys
request = json.load(sys.stdin)
sys.path[:] = request["path"]
from core.cli.probe import answer
answer(request["kind"], request["names"])
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an import.

    Attributes:
        status: `"ok"`, `"fails"`, `"exits"` or `"hangs"`.
        import_s: wall time in seconds, what the plugin imports included; None if it did not end.
        error: what went wrong; empty if nothing did.
    """

    status: str
    import_s: float | None = None
    error: str = ""


def probe(rows: Sequence[Row], timeout_s: float) -> dict[Row, Outcome]:
    """Import what each row names. Rows of one module share a child, as they would share an import."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.kind, row.provider, row.target.partition(":")[0]].append(row)
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        answers = pool.map(lambda group: _ask_child(group, timeout_s), groups.values())
    return {row: outcome for outcomes in answers for row, outcome in outcomes.items()}


def answer(kind: str, names: Sequence[str]) -> None:
    """Import by name in the child, and report on the real standard output, which plugins can't write to."""
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from core.contract.errors import CoreError
    from core.registry import Registry

    registry: Registry[object] = Registry(kind)
    for name in names:
        begin = time.perf_counter()
        try:
            registry.get(name)
            error = ""
        except CoreError as cause:
            error = str(cause)
        report.write(json.dumps([time.perf_counter() - begin, error]) + "\n")
        report.flush()
    # Threads and exit handlers of a plugin don't get the chance to keep the child alive.
    os._exit(0)


def _ask_child(rows: Sequence[Row], timeout_s: float) -> dict[Row, Outcome]:
    names = [f"{row.provider}:{row.alias}" for row in rows]
    request = json.dumps({"path": sys.path, "kind": rows[0].kind, "names": names})
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = child.communicate(request, timeout=timeout_s)
        missing = Outcome("exits", error=_last_words(child.returncode, errors))
    except subprocess.TimeoutExpired:
        _kill_group(child)
        output, _ = child.communicate()
        missing = Outcome("hangs", error=f"Its import did not end within {timeout_s:g} s.")
    finally:
        _kill_group(child)
    # Answers come in the order of names: the first that is missing is of the plugin at which the child ended.
    found = [json.loads(line) for line in output.splitlines()]
    outcomes = [Outcome("fails" if error else "ok", import_s, error) for import_s, error in found]
    return {row: outcomes[number] if number < len(outcomes) else missing for number, row in enumerate(rows)}


def _kill_group(child: subprocess.Popen[str]) -> None:
    """End the child, and what the plugin has started in it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _last_words(code: int, errors: str) -> str:
    ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    words = errors.strip().splitlines()[-1:] or ["it wrote nothing"]
    return f"Its import ended the interpreter with {ending}; the last words: {words[0]}"
