"""The report of all steps as a page."""

from html import escape

STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 64rem; padding: 0 1rem; }
table { border-collapse: collapse; }
th, td { border-bottom: 1px solid #8884; padding: .3rem .7rem; text-align: left; vertical-align: top; }
.passed { color: #1a7f37; } .failed, .crashed, .out { color: #cf222e; } pre { margin: 0; white-space: pre-wrap; }
"""


def page(report: dict) -> str:
    """The report as one page of HTML that needs nothing else."""
    facts = "".join(
        f"<tr><th>{escape(str(key))}<td>{escape(str(value))}"
        for key, value in report["machine"].items()
    )
    rows = "".join(
        f"<tr><td class={escape(each['verdict'].split()[0])}>{escape(each['verdict'])}<td>{escape(each['step'])}"
        f"<td>{escape(each['about'])}<td>{each['seconds']:.1f} "
        f"s<td><pre>{escape(figures_of(each))}</pre>"
        for each in report["verdicts"]
    )
    return (
        "<!doctype html><meta charset=utf-8><title>core on a GPU, "
        f"{report['date']}</title><style>{STYLE}</style>"
        f"<h1>core on {'a CPU, small' if report['small'] else 'GPUs'}, "
        f"{report['date']}</h1><table>{facts}</table>"
        "<h2>Verdicts</h2><table><tr><th><th>step<th>what<th>took<th>figures, or "
        f"why{rows}</table>\n"
    )


def figures_of(verdict: dict) -> str:
    """Figures a line each, then the reason."""
    lines = [f"{name}: {value}" for name, value in verdict["figures"].items()]
    return "\n".join([*lines, verdict["why"]]).strip()
