"""`core list` and `core list-strategies`: the plugins of one kind, or the packages themselves."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import redirect_stdout
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from core.cli.cards import proof
from core.cli.layout import paragraph, say, say_all, say_json, styled, table
from core.contract.errors import CoreError
from core.contract.kinds import KINDS
from core.registry import (
    DEFAULT_PARALLEL_STRATEGY,
    Registry,
    Row,
    Status,
    known_aliases,
    listing,
    plugin_manager,
)
from core.registry.builtins import CORE
from core.registry.known_plugins import pip_install
from core.registry.refusals import list_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from core.registry import Provider


class Outcome(NamedTuple):
    """The result of an import.

    Attributes:
        status: `"ok"` or `"fails"`.
        import_s: wall time in seconds, what was imported with it included.
        error: what went wrong; empty if nothing did.
    """

    status: str
    import_s: float
    error: str


_PRESET = "preset"
_COLORS = {
    Status.OK: "green",
    Status.BLOCKED: "yellow",
    Status.CONFLICT: "yellow",
    Status.SHADOWED: "yellow",
}
_PACKAGES = "plugins"
_KINDS = {kind.plural: kind.name for kind in KINDS.values()}
_EXAMPLES = """\b
Examples:
  core list
  core list strategies --all
  core list loggers --proven
  core list precisions --check
  core list plugins --json
"""


def _options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print a list of JSON objects."),
        click.option(
            "--check",
            is_flag=True,
            help="Of a kind, import each one; show the time that it adds, and problems.",
        ),
        click.option(
            "--proven",
            is_flag=True,
            help="Of a kind, show how many tests of the conformance kit passed, and who ran it.",
        ),
        click.option(
            "--all",
            "everything",
            is_flag=True,
            help="Show each preset, and what can't be used, and why.",
        ),
    ):
        function = option(function)
    return function


@click.command("list", short_help="List what is installed of a kind of plugin.", epilog=_EXAMPLES)
@click.argument("kind", type=click.Choice([*_KINDS, _PACKAGES]), default=_PACKAGES)
@_options
def list_(kind: str, everything: bool, check: bool, proven: bool, as_json: bool) -> None:
    """List the installed plugins of a KIND: alias, class, package, version and status. Or list the
    packages that offer something to core, and what is wrong with any.

    A package is named by its distribution, as pip knows it. Modules with event hooks and preludes
    are counted too; they run only when a Trainer, or `core run`, names them. Nothing is imported,
    unless --check asks for it.
    """
    if kind == _PACKAGES:
        _list_packages(everything, as_json)
    else:
        _list_kind(_KINDS[kind], everything, check, proven, as_json)


@click.command("list-strategies", short_help="List the installed strategies.")
@_options
def list_strategies(everything: bool, check: bool, proven: bool, as_json: bool) -> None:
    """List the installed strategies: alias, class, package, version and status. The same as `core
    list strategies`.
    """
    _list_kind("strategy", everything, check, proven, as_json)


def _list_kind(kind: str, everything: bool, check: bool, proven: bool, as_json: bool) -> None:
    rows = listing(kind)
    shown = [row for row in rows if everything or row.status is Status.OK]
    outcomes: dict[Row, Outcome] = {}
    proofs: dict[Row, str] = {}
    presets: dict[Row, list[str]] = {}
    if check:
        outcomes = _check(shown)
    elif not everything and not as_json:
        presets = _remove_presets(shown)
    if proven:
        proofs = {row: proof(row) for row in shown}
    if as_json:
        say_json([_as_json(row, outcomes, proofs) for row in shown])
    else:
        headers = ["Alias", "Class", "Package", "Version", "Status"]
        if outcomes:
            headers.append("Import")
        cells = [_cells(row, outcomes) for row in shown]
        notes = [_note(row, outcomes, presets, proofs) for row in shown]
        if shown:
            say_all(table(headers, cells, notes))
        else:
            say("None.")
        _print_hints(kind, rows, everything)
    if any(outcome.error for outcome in outcomes.values()):
        raise SystemExit(1)


def _list_packages(everything: bool, as_json: bool) -> None:
    rows = listing()
    found = [_provider_as_json(each, rows) for each in plugin_manager().providers.values()]
    shown = [entry for entry in found if everything or entry["status"] == "ok"]
    problems = [row for row in rows if not row.kind]
    if as_json:
        say_json([*shown, *(_as_json(row, {}, {}) | {"offers": {}} for row in problems)])
    else:
        lines = [
            [
                entry["provider"],
                entry["version"],
                _styled(Status(entry["status"])),
                ", ".join(starmap(_counted, entry["offers"].items())) or "nothing",
            ]
            for entry in shown
        ]
        notes = [entry["detail"] for entry in shown]
        say_all(table(["Package", "Version", "Status", "Offers"], lines, notes))
        if problems:
            say()
            say(styled("Problems", bold=True))
        for problem in problems:
            say(f"{problem.provider}  ", _styled(problem.status))
            where = f"{problem.detail} ({problem.location})".removesuffix(" ()")
            say_all(paragraph(where, indent="    "))


def _check(rows: Iterable[Row]) -> dict[Row, Outcome]:
    outcomes = {}
    for row in rows:
        if row.status in (Status.OK, Status.CONFLICT, Status.RESERVED):
            status, error, begin_s = "ok", "", time.perf_counter()
            try:
                with redirect_stdout(sys.stderr):  # what a plugin prints is no row
                    Registry[Any](row.kind).get(f"{row.provider}:{row.alias}")
            except CoreError as cause:
                status = "fails"
                error = str(cause)
            outcomes[row] = Outcome(status, time.perf_counter() - begin_s, error)
    return outcomes


def _remove_presets(rows: list[Row]) -> dict[Row, list[str]]:
    """Remove the presets from the rows, and return their aliases by the row of the class behind
    them, which is one of their package with whose alias theirs begin.
    """
    presets: dict[Row, list[str]] = {}
    classes = [row for row in rows if _class_of(row) != _PRESET]
    for row in [row for row in rows if row not in classes]:
        begun = [
            each
            for each in classes
            if each.provider == row.provider and row.alias.startswith(f"{each.alias}_")
        ]
        if begun:
            owner = max(begun, key=lambda each: len(each.alias))
            presets.setdefault(owner, []).append(row.alias)
            rows.remove(row)
    return presets


def _note(
    row: Row,
    outcomes: dict[Row, Outcome],
    presets: dict[Row, list[str]],
    proofs: dict[Row, str],
) -> str:
    parts = []
    if row in proofs:
        parts.append(f"proven: {proofs[row]}")
    if row in presets:
        shortest = min(presets[row], key=len)
        if len(presets[row]) > 1:
            shortest = f"its {len(presets[row])} presets, such as {shortest}"
        parts.append(f"and {shortest}")
    elif row in outcomes and outcomes[row].error:
        parts.append(outcomes[row].error)
    elif row.detail:
        parts.append(row.detail)
    return "; ".join(parts)


def _cells(row: Row, outcomes: dict[Row, Outcome]) -> list[str]:
    status = _styled(row.status)
    took = "-"
    if row in outcomes:
        took = f"{outcomes[row].import_s:.2f} s"
        if outcomes[row].error:
            status = styled(outcomes[row].status, fg="red")
    cells = [row.alias or "-", _class_of(row), row.provider, row.version or "-", status]
    if outcomes:
        cells.append(took)
    return cells


def _class_of(row: Row) -> str:
    """The class as the metadata has it. A factory is recognized by its name: nothing is imported
    here.
    """
    name = row.target.rpartition(":")[2].rpartition(".")[2]
    if row.kind == "command" or not name:
        return "-"
    if name[0].isupper():
        return name
    if name == row.alias:
        return _PRESET
    return f"{name}()"


def _styled(status: Status) -> str:
    return styled(str(status), fg=_COLORS.get(status, "red"))


def _print_hints(kind: str, rows: Sequence[Row], everything: bool) -> None:
    """On standard error, so that a pipe gets rows only."""
    hidden = Counter(str(row.status) for row in rows if row.status is not Status.OK)
    if hidden and not everything:
        counts = ", ".join(f"{number} {status}" for status, number in sorted(hidden.items()))
        say_all(paragraph(f"Not shown: {counts}. See `{list_command(kind)} --all`."), err=True)
    usable = [row for row in rows if row.status is Status.OK]
    if kind == "strategy" and all(row.provider == CORE for row in usable):
        command = pip_install(known_aliases(kind)[DEFAULT_PARALLEL_STRATEGY])
        hint = f"Strategies for several devices come in packages of their own: {command}."
        say_all(paragraph(hint), err=True)


def _as_json(row: Row, outcomes: dict[Row, Outcome], proofs: dict[Row, str]) -> dict[str, Any]:
    entry: dict[str, Any] = row._asdict() | {"status": str(row.status)}
    if row in proofs:
        entry["proven"] = proofs[row]
    if row in outcomes:
        entry["check"] = outcomes[row]._asdict()
    return entry


def _provider_as_json(provider: Provider, rows: Iterable[Row]) -> dict[str, Any]:
    offered = [row for row in rows if row.provider == provider.name and row.kind]
    details = [f"{row.alias}: {row.detail}" for row in offered if row.detail]
    status = "ok"
    if offered and all(row.status is not Status.OK for row in offered):
        status = str(offered[0].status)
    return {
        "provider": provider.name,
        "version": provider.version,
        "status": status,
        "offers": dict(Counter(row.kind for row in offered)),
        "summary": provider.summary,
        "location": provider.location,
        "detail": "\n".join(dict.fromkeys(details)),
    }


def _counted(kind: str, number: int) -> str:
    word = kind.removesuffix("s")
    if number > 1:
        word = f"{word}s"
        if kind in KINDS:
            word = KINDS[kind].plural.replace("-", " ")
    return f"{number} {word}"
