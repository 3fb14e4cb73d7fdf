"""The names of Lightning's that a program uses and core-lightning lacks, found without running it."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from core_lightning import names

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHORT = {"pytorch_lightning": "lightning.pytorch", "lightning_fabric": "lightning.fabric"}
_PAGE = "docs/lightning.md"


class Use(NamedTuple):
    """A name of Lightning's in a file.

    Attributes:
        path: of the file.
        line: in it.
        name: with its module.
        is_there: whether core-lightning has it.
    """

    path: Path
    line: int
    name: str
    is_there: bool


def explain(script: Path) -> tuple[str, bool]:
    """The report on a script and the modules beside it that it imports, and whether nothing is missing.

    Names are those in `import` statements and attributes of the modules that they bind, and arguments of `Trainer`.
    The imports of other installed packages aren't looked at.
    """
    uses = [use for path in _files(script) for use in _uses(path)]
    missing = [use for use in uses if not use.is_there]
    found = len({use.name for use in uses}) - len({use.name for use in missing})
    lines = [f"{use.path}:{use.line}: core-lightning has no {use.name}" for use in missing]
    verdict = f"{found} of Lightning's names that {script} uses are there"
    rest = f", and {len({use.name for use in missing})} are not. {_PAGE} says what there is." if missing else "."
    return "\n".join([*lines, verdict + rest]), not missing


def _files(script: Path) -> list[Path]:
    """The script, and modules beside it that it imports, directly or through each other."""
    found, waiting = [], [script]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found.append(path)
        for node in ast.walk(_parsed(path)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for module in modules:
                base = script.parent.joinpath(*module.split("."))
                waiting += [base.with_suffix(".py"), base / "__init__.py"]
    return found


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), str(path))


def _uses(path: Path) -> Iterator[Use]:
    """The names in one file, each where it stands."""
    tree = _parsed(path)
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (module := _full(alias.name)) is not None:
                    bound[alias.asname or alias.name.partition(".")[0]] = (
                        module if alias.asname else _full(alias.name.partition(".")[0]) or module
                    )
                    yield Use(path, node.lineno, module, module in names.MODULES)
        elif isinstance(node, ast.ImportFrom) and (module := _full(node.module or "")) is not None and not node.level:
            for alias in node.names:
                if alias.name != "*":
                    bound[alias.asname or alias.name] = name = f"{module}.{alias.name}"
                    yield Use(path, node.lineno, name, _is_there(name))
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in inner and (dotted := _dotted(node, bound)) is not None:
            known = _known_part(dotted)
            yield Use(path, node.lineno, known, _is_there(known))
        if isinstance(node, ast.Call) and (_dotted(node.func, bound) or "").endswith(".Trainer"):
            yield from (
                Use(path, node.lineno, f"Trainer({key.arg}=)", _takes(key.arg)) for key in node.keywords if key.arg
            )


def _full(module: str) -> str | None:
    """The module under its longer name; None if it isn't one of Lightning's."""
    root, dot, rest = module.partition(".")
    return f"{_SHORT.get(root, root)}{dot}{rest}" if root in ("lightning", *_SHORT) else None


def _dotted(node: ast.expr, bound: dict[str, str]) -> str | None:
    """The whole name of an attribute of something that an import has bound."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in bound:
        return None
    return ".".join([bound[node.id], *reversed(parts)])


def _known_part(name: str) -> str:
    """The name as far as it is a module's own: what follows are attributes of a class."""
    parts = name.split(".")
    for number in range(1, len(parts)):
        module = ".".join(parts[:number])
        if f"{module}.{parts[number]}" not in names.MODULES:
            return f"{module}.{parts[number]}"
    return name


def _is_there(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    if (target := names.MODULES.get(module, {}).get(attribute)) is not None:
        return not target.startswith(names.STAND_INS)
    return name in names.MODULES or attribute.startswith("__")


def _takes(argument: str) -> bool:
    from core_lightning.trainer import Trainer

    return argument in inspect.signature(Trainer).parameters
