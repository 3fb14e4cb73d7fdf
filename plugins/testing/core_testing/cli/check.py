"""`core check`: shows what a plugin has proven."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from core import KINDS, ConfigurationError, __version__
from core.cli import (
    KINDS_BY_OPTION,
    paragraph,
    say,
    say_json,
    shown,
    styled,
    table,
    unknown_alias,
)
from core.registry import (
    Registry,
    Status,
    known_aliases,
    listing,
    normalize_distribution,
    plugin_manager,
    split_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core import Spec
    from core_testing.cli.check_run import CheckResult, Suite

__all__ = ["check"]

_COLORS = {
    "proven": "green",
    "failed": "red",
    "not declared": "bright_black",
    "not tested": "yellow",
}
_OUTCOMES = {
    "passed": "passed",
    "failed": "failed",
    "skipped": "skipped",
    "xfailed": "known to fail",
}

_GOOD = "all well"

_EXAMPLES = """\b
Examples:
  core check ddp
  core check core-ddp --html report.html
  core check core-acme --card core_acme/card.json
  core check ddp -k checkpoint --options '{"bucket_cap_mb": 1}'
  core check ddp --accelerator cuda --num-processes 1
"""


def _as_options(
    ctx: click.Context, param: click.Parameter, text: str | None
) -> dict[str, Any] | None:
    try:
        options = json.loads(text) if text is not None else None
    except ValueError as error:
        raise click.BadParameter(
            f"{error}. Expected JSON, as in '{{\"period\": 4}}'.", ctx, param
        ) from error
    if options is not None and not isinstance(options, dict):
        raise click.BadParameter("expected an object, as in '{\"period\": 4}'.", ctx, param)
    return options


@click.command(short_help="Run the conformance kit on a plugin.", epilog=_EXAMPLES)
@click.argument("name", required=False)
@click.option(
    "--all", "everything", is_flag=True, help="Everything that is installed, in the place of NAME."
)
@click.option("--kind", type=click.Choice(list(KINDS_BY_OPTION)), help="Only plugins of this kind.")
@click.option(
    "-k", "keyword", default="", metavar="EXPRESSION", help="Only tests that match, as in pytest."
)
@click.option(
    "--options", callback=_as_options, metavar="JSON", help="Options that the plugin is made with."
)
@click.option(
    "--accelerator", metavar="NAME", help="Where it runs.  [default: the suite's choice, cpu]"
)
@click.option(
    "--num-processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="In how many processes a strategy runs.",
)
@click.option(
    "--in-process",
    is_flag=True,
    default=None,
    help="Make a strategy's ranks threads of one process.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a report, a page in one file.",
)
@click.option(
    "--card",
    type=click.Path(path_type=Path, dir_okay=False),
    is_flag=False,
    flag_value="",
    help="Keep the results in this card; without a file in your own, which `core list-strategies "
    "--proven` reads.",
)
@click.option("--by", default="", metavar="NAME", help="Who runs it, for the card.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Show the table of suites without a failure too, and tracebacks.",
)
@click.pass_context
def check(
    ctx: click.Context,
    /,
    name: str | None,
    everything: bool,
    kind: str | None,
    keyword: str,
    html: Path | None,
    card: Path | None,
    by: str,
    as_json: bool,
    verbose: bool,
    **attributes: Any,
) -> None:
    """Run the conformance kit on NAME: an alias, `core-acme:acme`, or a whole package, `core-acme`.

    The suites are those in the package's module `conformance`, if it has one, and otherwise the
    kit's own. The exit code is 1 if a test fails, or none could run.
    """
    from core_testing.cli.check_progress import make_progress
    from core_testing.cli.check_run import run

    if (name is None) is not everything:
        raise click.UsageError("Name a plugin, or pass --all.")
    if html is not None and not html.parent.is_dir():
        raise ConfigurationError(f"--html {html}: there is no folder {html.parent}. Make it first.")
    if card is not None and (keyword or attributes["options"] or attributes["in_process"]):
        raise ConfigurationError(
            "A card tells of whole suites with a plugin's defaults: leave out -k, --options and "
            "--in-process."
        )
    if card is not None:
        _own_card("")  # before the tests, not after them
    only = KINDS_BY_OPTION[kind] if kind else None
    plugins = _everything(only) if name is None else _named(name, only)
    given = {key: value for key, value in attributes.items() if value is not None}
    with make_progress() as progress:
        report = run(plugins, progress, keyword=keyword, attributes=given)
    _write(report, html=html, as_json=as_json, verbose=verbose)
    if card is not None:
        _keep(report, card, by)
    ctx.exit(int(not report.is_good))


def _write(report: CheckResult, *, html: Path | None, as_json: bool, verbose: bool) -> None:
    if html is not None:
        from core_testing.cli.check_page import render

        try:
            html.write_text(render(report), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{html} can't be written: {error}") from error
    if as_json:
        say_json(dataclasses.asdict(report))
        return
    for suite in report.suites:
        for line in _lines(suite, verbose=verbose):
            say(line)
    if html is not None:
        say(f"The report is in {html}.")
    elif not report.is_good and not verbose:
        say("--verbose prints tracebacks, and --html writes them.", err=True)


def _own_card(provider: str) -> Path:
    """The card of a package that the user's own runs fill.

    Raises:
        ConfigurationError: core is from before the first release, which its version can't say, and
            keeps no cards.
    """
    try:
        from core.cli import own_card
    except ImportError as error:
        message = (
            f"--card: this core-base {__version__} was built before the release, and "
            "keeps no cards."
        )
        raise ConfigurationError(f"{message} Install the release, or leave out --card.") from error
    return own_card(provider)


def _keep(report: CheckResult, card: Path, by: str) -> None:
    from core_testing.cli.card import results_of, write

    found = list(results_of(dataclasses.asdict(report), by=by))
    for provider in dict.fromkeys(result["provider"] for result in found):
        path = card if card.name else _own_card(provider)
        write(path, [result for result in found if result["provider"] == provider])
        say(f"The card is {path}.", err=True)


def _everything(kind: str | None) -> list[tuple[str, Spec]]:
    rows = [row for row in listing(kind) if row.kind in KINDS and row.status is Status.OK]
    return [(row.alias, Registry[Any](row.kind).spec(row.alias)) for row in rows]


def _named(name: str, kind: str | None) -> list[tuple[str, Spec]]:
    """Find what a name stands for: an alias of one kind or several, or all that a package offers.

    Raises:
        CoreError: nothing has this name, or it can't be used.
    """
    provider, alias = split_name(name)
    kinds = [kind] if kind else [*KINDS]
    offering = [each for each in kinds if _is_offered(each, provider, alias)]
    if not offering:
        package = normalize_distribution(name)
        if package in plugin_manager().providers:
            own = [(each, spec) for each, spec in _everything(kind) if spec.provider == package]
            return own or _nothing(name, kind)
        offering = [each for each in kinds if alias in known_aliases(each)]
    if not offering and kind is None:
        raise unknown_alias(name)
    return [(name, Registry[Any](each).spec(name)) for each in offering or kinds]


def _is_offered(kind: str, provider: str | None, alias: str) -> bool:
    offers = Registry[Any](kind).providers_of(alias)
    return any(provider in (None, offer.spec.provider) for offer in offers)


def _nothing(name: str, kind: str | None) -> list[tuple[str, Spec]]:
    raise ConfigurationError(
        f"The package {name} offers no {kind or 'plugin'} that can be used here. See `core "
        "list --all`."
    )


def _lines(suite: Suite, *, verbose: bool) -> Iterator[str]:
    count = suite.count()
    numbers = ", ".join(
        f"{count[outcome]} {name}" for outcome, name in _OUTCOMES.items() if count[outcome]
    )
    took = f"{sum(test.duration_s for test in suite.tests):.0f} s of tests"
    if not verbose and suite.is_good:
        first, *rest = paragraph(f"{_GOOD}  {suite.title}, on {suite.ground}: {numbers}, {took}")
        yield shown(styled(_GOOD, fg="green"), first.removeprefix(_GOOD))
        yield from paragraph(" ".join(rest), indent=" " * len(f"{_GOOD}  "))
        return
    yield styled(suite.title, bold=True)
    where = f"{suite.num_processes} processes" if suite.num_processes > 1 else "one process"
    yield from paragraph(f"{suite.source}, on {suite.ground}, {where}", indent="  ")
    yield ""
    yield from table(["What it must do", "State", "Tests"], [*_rows(suite)])
    yield ""
    for title, outcome, color in (
        ("Failed", "failed", "red"),
        ("Known to fail", "xfailed", "yellow"),
    ):
        tests = [test for test in suite.tests if test.outcome == outcome]
        if tests:
            yield styled(title, fg=color, bold=True)
        for test in tests:
            yield f"  {test.name}"
            text = test.details if verbose and test.details else test.reason
            yield from (
                [f"    {line}" for line in text.splitlines()]
                if verbose
                else paragraph(text, indent="    ")
            )
    yield from _left_out(suite)
    yield styled(f"{numbers}: {took}", bold=True)
    yield ""


def _left_out(suite: Suite) -> Iterator[str]:
    """The reasons of tests that didn't run, but for capabilities that aren't declared, which the
    table has.
    """
    skipped = [
        test
        for test in suite.tests
        if test.outcome == "skipped" and "does not declare" not in test.reason
    ]
    if skipped:
        yield styled("Left out", bold=True)
    for reason, number in Counter(test.reason for test in skipped).items():
        yield from paragraph(f"{reason} ({number} test{'s' * (number > 1)})", indent="  ")


def _rows(suite: Suite) -> Iterator[list[str]]:
    """The rows of the table: the duties of every plugin of the kind, then each capability."""
    always = [test for test in suite.tests if not test.needs]
    if always:
        outcomes = {test.outcome for test in always}
        if "failed" in outcomes:
            state = "failed"
        elif "passed" in outcomes:
            state = "proven"
        else:
            state = "not tested"
        yield [f"every {suite.kind}", _state(state), _counted(always)]
    for name, state in suite.capabilities.items():
        yield [name, _state(state), _counted([test for test in suite.tests if name in test.needs])]


def _state(name: str) -> str:
    return styled(name, fg=_COLORS[name])


def _counted(tests: list[Any]) -> str:
    outcomes = [test.outcome for test in tests]
    counts = [
        f"{outcomes.count(outcome)} {name}"
        for outcome, name in _OUTCOMES.items()
        if outcome in outcomes
    ]
    return ", ".join(counts) or "none ran"
