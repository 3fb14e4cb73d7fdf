"""`core report`: a run, or several beside each other, as a page."""

from __future__ import annotations

from pathlib import Path

import click

from core import ConfigurationError
from core.cli import say

_EXAMPLES = """\b
Examples:
  core report core_logs/version_0
  core report core_logs/version_0 --output run.html
  core report core_logs                     all runs in it, side by side
"""


@click.command(
    short_help="Write runs' metrics, decisions and checkpoints as a page.", epilog=_EXAMPLES
)
@click.argument(
    "runs", type=click.Path(path_type=Path, exists=True, file_okay=False), nargs=-1, required=True
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page.  [default: report.html in the folder, or here for several]",
)
def report(runs: tuple[Path, ...], output: Path | None) -> None:
    """Write a page about RUNS, folders of runs with the CSVLogger. A folder of such folders stands
    for all of them. A run with another logger alone has no page: give it logger=["csv", ...].

    Of one run it has outcome, duration, command and best values, metrics as charts, throughput,
    memory, versions, the strategy and why, and checkpoints with their digests. Several stand side
    by side, with the settings that differ. It is one file, which needs nothing else.
    """
    from core_report import comparison
    from core_report import page as one_run
    from core_report.run_record import find_runs, read_run

    folders = list(dict.fromkeys(folder for run in runs for folder in find_runs(run)))
    records = [read_run(folder) for folder in folders]
    page = one_run.render(records[0]) if len(records) == 1 else comparison.render(records)
    target = output or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    try:
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{target} can't be written: {error}") from error
    say(f"The report{f' of {len(records)} runs' if len(records) > 1 else ''} is in {target}.")
