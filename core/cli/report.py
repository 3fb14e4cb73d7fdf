"""`core report`: a run as a page."""

from __future__ import annotations

from pathlib import Path

import click

from core.cli.layout import say
from core.contract.errors import ConfigurationError

_EXAMPLES = """\b
Examples:
  core report core_logs/version_0
  core report core_logs/version_0 --output run.html
"""


@click.command(short_help="Write a run's metrics, decisions and checkpoints as a page.", epilog=_EXAMPLES)
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="The page.  [default: RUN/report.html]")
def report(run: Path, output: Path | None) -> None:
    """Write a page about RUN, the folder of a run with the CSVLogger.

    It has metrics as charts, throughput, memory, versions, the strategy and why, and checkpoints with their digests.
    It is one file, which needs nothing else.
    """
    from core.cli.report_page import render
    from core.cli.run_record import read_run

    target = output or run / "report.html"
    page = render(read_run(run))
    try:
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{target} can't be written: {error}") from error
    say(f"The report is in {target}.")
