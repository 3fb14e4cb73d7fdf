"""`core list-strategies` and its siblings: one command a kind, and one for the packages
themselves.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import redirect_stdout
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from core.contract import Kind
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


def _options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print a list of JSON objects."),
        click.option(
            "--check",
            is_flag=True,
            help="Import each one; show the time that it adds, and problems.",
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


def _command_for(kind: Kind) -> click.Command:
    plural = kind.plural.replace("-", " ")

    @click.command(f"list-{kind.plural}", short_help=f"List the installed {plural}.")
    @click.option(
        "--proven",
        is_flag=True,
        help="Show how many tests of the conformance kit passed, and who ran it.",
    )
    @_options
    def command(everything: bool, check: bool, as_json: bool, proven: bool) -> None:
        rows = listing(kind.name)
        shown = [row for row in rows if everything or row.status is Status.OK]
        outcomes = _check(shown) if check else {}
        proofs = {row: proof(row) for row in shown} if proven else {}
        if as_json:
            say_json([_as_json(row, outcomes.get(row), proofs.get(row)) for row in shown])
        else:
            _print(
                shown, outcomes, {} if everything or check else _owners_of_presets(shown), proofs
            )
            _print_hints(kind, rows, shown)
        if any(outcome.error for outcome in outcomes.values()):
            raise SystemExit(1)

    command.help = (
        f"List the installed {plural}: alias, class, package, version and status.\n\n"
        f"Nothing is imported to know them, unless --check asks for it."
    )
    command.epilog = (
        f"\b\nExamples:\n"
        f"  core list-{kind.plural} --all\n"
        f"  core list-{kind.plural} --proven\n"
        f"  core list-{kind.plural} --check\n"
        f"  core list-{kind.plural} --json"
    )
    return command


_PLUGINS_EXAMPLES = """\b
Examples:
  core list-plugins --all
  core list-plugins --check
"""


@click.command(
    "list-plugins",
    short_help="List the installed packages that offer something to core.",
    epilog=_PLUGINS_EXAMPLES,
)
@_options
def list_plugins(everything: bool, check: bool, as_json: bool) -> None:
    """List the installed packages that offer something to core, and what is wrong with any.

    A package is named by its distribution, as pip knows it. Modules with event hooks and preludes
    are counted too; they run only when a Trainer, or `core run`, names them.
    """
    rows = listing()
    usable = [row for row in rows if row.kind and row.status is Status.OK]
    outcomes = _check([row for row in usable if row.kind in KINDS]) if check else {}
    found = [
        _provider_as_json(provider, rows, outcomes)
        for provider in plugin_manager().providers.values()
    ]
    shown = [entry for entry in found if everything or entry["status"] == "ok"]
    problems = [row for row in rows if not row.kind]
    if as_json:
        say_json([*shown, *(_as_json(row) | {"offers": {}} for row in problems)])
    else:
        _print_providers(shown, problems)
    if any(outcome.error for outcome in outcomes.values()):
        raise SystemExit(1)


def _check(rows: Iterable[Row]) -> dict[Row, Outcome]:
    outcomes = {}
    for row in rows:
        if row.status in (Status.OK, Status.CONFLICT, Status.RESERVED):
            error, begin_s = "", time.perf_counter()
            try:
                with redirect_stdout(sys.stderr):  # what a plugin prints is no row
                    Registry[Any](row.kind).get(f"{row.provider}:{row.alias}")
            except CoreError as cause:
                error = str(cause)
            outcomes[row] = Outcome(
                "fails" if error else "ok", time.perf_counter() - begin_s, error
            )
    return outcomes


def __getattr__(name: str) -> click.Command:
    """The command of one kind, such as `list_strategies`."""
    # The built-ins name such a function as the target of each `core list-...`.
    for kind in KINDS.values():
        if name == f"list_{kind.plural}".replace("-", "_"):
            return _command_for(kind)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _print(
    rows: Sequence[Row],
    outcomes: dict[Row, Outcome],
    owners: dict[Row, Row],
    proofs: dict[Row, str],
) -> None:
    if not rows:
        say("None.")
        return
    headers = ["Alias", "Class", "Package", "Version", "Status"]
    if outcomes:
        headers.append("Import")
    rows = [row for row in rows if row not in owners]
    cells = [_cells(row, outcomes) for row in rows]
    notes = [
        _note(row, outcomes, [preset.alias for preset, owner in owners.items() if owner is row])
        for row in rows
    ]
    if proofs:
        notes = [
            f"proven: {proofs[row]}" + (note and f"; {note}")
            for row, note in zip(rows, notes, strict=True)
        ]
    say_all(table(headers, cells, notes))


def _note(row: Row, outcomes: dict[Row, Outcome], presets: Sequence[str]) -> str:
    if presets:
        shortest = min(presets, key=len)
        return (
            f"and its {len(presets)} presets, such as {shortest}"
            if presets[1:]
            else f"and {shortest}"
        )
    return (row in outcomes and outcomes[row].error) or row.detail


def _owners_of_presets(rows: Sequence[Row]) -> dict[Row, Row]:
    """The row of the class behind each preset: one of its package, with whose alias that of the
    preset begins.
    """
    classes = [row for row in rows if _class_of(row) != _PRESET]
    owners = {}
    for row in rows:
        begun = [
            each
            for each in classes
            if each.provider == row.provider and row.alias.startswith(f"{each.alias}_")
        ]
        if begun and _class_of(row) == _PRESET:
            owners[row] = max(begun, key=lambda each: len(each.alias))
    return owners


def _cells(row: Row, outcomes: dict[Row, Outcome]) -> list[str]:
    cells = [
        row.alias or "-",
        _class_of(row),
        row.provider,
        row.version or "-",
        _styled(row.status),
    ]
    if not outcomes:
        return cells
    outcome = outcomes.get(row)
    if outcome is not None and outcome.error:
        cells[-1] = styled(outcome.status, fg="red")
    return [*cells, f"{outcome.import_s:.2f} s" if outcome else "-"]


def _class_of(row: Row) -> str:
    """The class as the metadata has it. A factory is recognized by its name: nothing is imported
    here.
    """
    if row.kind == "command":
        return "-"
    name = row.target.rpartition(":")[2].rpartition(".")[2]
    if name[:1].isupper():
        return name
    if not name:
        return "-"
    return f"{name}()" if name != row.alias else _PRESET


def _styled(status: Status) -> str:
    return styled(str(status), fg=_COLORS.get(status, "red"))


def _print_hints(kind: Kind, rows: Sequence[Row], shown: Sequence[Row]) -> None:
    """On standard error, so that a pipe gets rows only."""
    hidden = Counter(str(row.status) for row in rows if row not in shown)
    if hidden:
        counts = ", ".join(f"{number} {status}" for status, number in sorted(hidden.items()))
        say_all(paragraph(f"Not shown: {counts}. See `core list-{kind.plural} --all`."), err=True)
    if kind.name == "strategy" and all(row.provider == CORE for row in shown):
        package = known_aliases(kind.name)[DEFAULT_PARALLEL_STRATEGY]
        hint = (
            f"Strategies for several devices come in packages of their own: {pip_install(package)}."
        )
        say_all(paragraph(hint), err=True)


def _as_json(row: Row, outcome: Outcome | None = None, proven: str | None = None) -> dict[str, Any]:
    entry = (
        row._asdict() | {"status": str(row.status)} | ({} if proven is None else {"proven": proven})
    )
    if outcome is not None:
        entry["check"] = outcome._asdict()
    return entry


def _provider_as_json(
    provider: Provider, rows: Iterable[Row], outcomes: dict[Row, Outcome]
) -> dict[str, Any]:
    offered = [row for row in rows if row.provider == provider.name and row.kind]
    errors = [
        outcome.error
        for row, outcome in outcomes.items()
        if row.provider == provider.name and outcome.error
    ]
    refusals = list(dict.fromkeys(f"{row.alias}: {row.detail}" for row in offered if row.detail))
    statuses = [str(Status.BROKEN)] if errors else [str(row.status) for row in offered]
    return {
        "provider": provider.name,
        "version": provider.version,
        "status": "ok" if not statuses or "ok" in statuses else statuses[0],
        "offers": dict(Counter(row.kind for row in offered)),
        "summary": provider.summary,
        "location": provider.location,
        "detail": "\n".join(dict.fromkeys([*errors, *refusals])),
    }


def _print_providers(providers: Sequence[dict[str, Any]], problems: Sequence[Row]) -> None:
    rows = [
        [
            entry["provider"],
            entry["version"],
            _styled(Status(entry["status"])),
            _counts(entry["offers"]),
        ]
        for entry in providers
    ]
    say_all(
        table(
            ["Package", "Version", "Status", "Offers"],
            rows,
            [entry["detail"] for entry in providers],
        )
    )
    if problems:
        say()
        say(styled("Problems", bold=True))
    for problem in problems:
        say(f"{problem.provider}  ", _styled(problem.status))
        say_all(
            paragraph(f"{problem.detail} ({problem.location})".removesuffix(" ()"), indent="    ")
        )


def _counts(offers: dict[str, int]) -> str:
    return (
        ", ".join(f"{number} {_plural(kind, number)}" for kind, number in offers.items())
        or "nothing"
    )


def _plural(kind: str, number: int) -> str:
    if number == 1:
        return kind.removesuffix("s")
    return KINDS[kind].plural.replace("-", " ") if kind in KINDS else f"{kind.removesuffix('s')}s"
