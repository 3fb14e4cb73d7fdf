"""The report on a program for Lightning: whether it runs equal here, with what differs, or fails;
nothing is run.
"""

from __future__ import annotations

import ast
from pathlib import Path

from core_lightning.decisions import reasons
from core_lightning.script.classes import parsed
from core_lightning.script.reader import Finding, Reader


def explain(script: Path) -> tuple[str, bool]:
    """The report on a script and the modules beside it that it imports, and whether it runs."""
    found: set[Finding] = set()
    uses: dict[str, tuple[Path, int]] = {}
    for path in _files(script):
        reader = Reader(path)
        reader.visit(parsed(path))
        found.update(reader.found)
        uses = reader.uses | uses
    findings = sorted(found)
    for use, text in reasons.behaviours(uses):
        findings.append(Finding(*uses[use], text, fails=False))
    lines = [f"{each.path}:{each.line}: {each.text}" for each in findings]
    failing = [each for each in findings if each.fails]
    if failing:
        verdict = f"fails at {failing[0].place}"
    elif findings:
        verdict = f"runs, these lines differ: {', '.join(each.place for each in findings)}"
    else:
        verdict = "runs equal"
    lines.append(f"{script}: {verdict}")
    return "\n".join(lines), not failing


def _files(script: Path) -> list[Path]:
    """The script, and modules beside it that it imports, directly or through each other."""
    found: list[Path] = []
    waiting = [script]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found.append(path)
        for node in ast.walk(parsed(path)):
            for module in _imported(node):
                base = script.parent.joinpath(*module.split("."))
                waiting += [base.with_suffix(".py"), base / "__init__.py"]
    return found


def _imported(node: ast.AST) -> list[str]:
    """The modules that a statement imports, and names in them that may be modules."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []
