"""The page that `core report` makes of a folder."""

import json

from click.testing import CliRunner

from core_report import report

METRICS = "step,loss\n1,2\n"


def page_of(folder, metrics=METRICS, **files):
    """The page of a run with these metrics and files, by name without `.json`: text, or what
    becomes JSON.
    """
    folder.mkdir(exist_ok=True)
    (folder / "metrics.csv").write_text(metrics)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(
            content if isinstance(content, str) else json.dumps(content)
        )
    done = CliRunner().invoke(report, [str(folder)])
    assert done.exit_code == 0, done.output
    return (folder / "report.html").read_text()
