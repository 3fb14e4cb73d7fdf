"""The report on a program for Lightning: whether it runs equal here, with what differs, or fails;
nothing is run.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from core import Callback
from core_lightning.decisions import reasons as decisions
from core_lightning.names import modules as names
from core_lightning.strategies.strategy_names import NEVER_CALLED, StrategyNames, named
from core_lightning.trainer.trainer import Trainer
from core_lightning.trainer.trainer_attributes import FIXED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SHORT = {"pytorch_lightning": "lightning.pytorch", "lightning_fabric": "lightning.fabric"}
_GUARDS = ("ImportError", "ModuleNotFoundError", "AttributeError", "Exception")
_MAKE_NAMES = ("setattr", "register_buffer", "register_parameter", "register_module", "add_module")


class Finding(NamedTuple):
    """A line of a program that isn't what it is under Lightning, and whether the program ends
    there.
    """

    path: Path
    line: int
    text: str
    fails: bool = True


class Kind(NamedTuple):
    """The class of an object: core-lightning's, and the program's own that is derived from it, if
    any.
    """

    cls: Any
    own: ast.ClassDef | None = None


def explain(script: Path) -> tuple[str, bool]:
    """The report on a script and the modules beside it that it imports, and whether it runs."""
    readers = [_Reader(path) for path in _files(script)]
    for reader in readers:
        reader.visit(reader.tree)
    uses = {use: place for reader in reversed(readers) for use, place in reader.uses.items()}
    found = sorted(
        {finding for reader in readers for finding in reader.found}, key=lambda each: each[:3]
    )
    found += [
        Finding(*uses[first], text, fails=False) for first, text in decisions.behaviours(uses)
    ]
    lines = [f"{each.path}:{each.line}: {each.text}" for each in found]
    failing = [each for each in found if each.fails]
    places = ", ".join(f"{each.path.name}:{each.line}" for each in (failing[:1] or found))
    if failing:
        verdict = f"fails at {places}"
    elif found:
        verdict = f"runs, these lines differ: {places}"
    else:
        verdict = "runs equal"
    return "\n".join([*lines, f"{script}: {verdict}"]), not failing


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


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), str(path))


class _Reader(ast.NodeVisitor):
    """Walks through a file once, with the kinds of objects that names have where they stand."""

    def __init__(self, path: Path) -> None:
        self.path, self.tree = path, _parsed(path)
        self.found: list[Finding] = []
        self.uses: dict[str, tuple[Path, int]] = {}
        self.bound: dict[str, str] = {}
        self.kinds: dict[str, Kind] = {}
        self.classes: dict[str, Kind] = {}
        self.inside: list[Kind] = []
        self.unguarded = True
        stored = (
            node.attr
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Attribute) and _is_store(node)
        )
        self.assigned, self.is_open = {*stored}, False
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and _name_of(node.func) in (
                *_MAKE_NAMES,
                "hasattr",
                "getattr",
            ):
                texts = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
                self.assigned.update(text for text in texts if isinstance(text, str))
                self.is_open |= not texts and _name_of(node.func) in _MAKE_NAMES

    def _report(self, node: ast.AST, text: str, *, fails: bool = True) -> None:
        if self.unguarded:
            self.found.append(Finding(self.path, node.lineno, text, fails))  # type: ignore[attr-defined]

    def _use(self, node: ast.AST, *uses: str) -> None:
        for use in uses:
            self.uses.setdefault(use, (self.path, node.lineno))  # type: ignore[attr-defined]

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if (module := _full(alias.name)) is not None:
                root = _full(alias.name.partition(".")[0]) or module
                self.bound[alias.asname or alias.name.partition(".")[0]] = (
                    module if alias.asname else root
                )
                self._check_name(node, module)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if (module := _full(node.module or "")) is not None and not node.level:
            for alias in node.names:
                if alias.name != "*":
                    self.bound[alias.asname or alias.name] = name = f"{module}.{alias.name}"
                    self._check_name(node, name)

    def visit_Try(self, node: ast.Try) -> None:
        types = (handler.type or ast.Name("Exception") for handler in node.handlers)
        caught = {_name_of(each) for kind in types for each in ast.walk(kind)}
        before, self.unguarded = self.unguarded, self.unguarded and not caught & {*_GUARDS}
        self._visit_all(node.body)
        self.unguarded = before
        self._visit_all([*node.handlers, *node.orelse, *node.finalbody])

    def _visit_all(self, nodes: Sequence[ast.AST]) -> None:
        for each in nodes:
            self.visit(each)

    def _check_name(self, node: ast.AST, name: str) -> None:
        if not _is_there(name):
            self._report(node, f"core-lightning has no {name}")

    def _dotted(self, node: ast.expr) -> str | None:
        """The whole name of something that an import has bound."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.bound or node.id in self.kinds:
            return None
        return ".".join([self.bound[node.id], *reversed(parts)])

    def _class(self, node: ast.expr) -> Kind | None:
        """The class that an expression is, if it is one of Lightning's or derived from one."""
        if isinstance(node, ast.Name) and node.id in self.classes:
            return self.classes[node.id]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):  # an annotation
            node = (
                ast.parse(node.value, mode="eval").body
                if node.value.replace(".", "").isidentifier()
                else node
            )
        found = _class_named(self._dotted(node) or "")
        return None if found is None else Kind(found)

    def _kind(self, node: ast.expr) -> Kind | None:
        """The kind of object that an expression gives."""
        if isinstance(node, ast.Name):
            return self.kinds.get(node.id)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id == "super" and self.inside:
                return Kind(self.inside[-1].cls)
            return self._class(node.func)
        if isinstance(node, ast.Attribute) and (owner := self._kind(node.value)) is not None:
            return _kind_of_attribute(owner.cls, node.attr)
        return None

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [kind for base in node.bases if (kind := self._class(base)) is not None]
        kind = Kind(bases[0].cls, node) if bases else None
        if kind is not None:
            self.classes[node.name] = kind
            self._check_overrides(node, kind.cls)
            self.inside.append(kind)
        outer, self.kinds = self.kinds, dict(self.kinds)
        self.generic_visit(node)
        self.kinds = outer
        if kind is not None:
            self.inside.pop()

    def _check_overrides(self, node: ast.ClassDef, cls: Any) -> None:
        refused = NEVER_CALLED if issubclass(cls, StrategyNames) else getattr(cls, "uncalled", ())
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                self._use(
                    each, each.name, *(f"{base.__name__}.{each.name}" for base in cls.__mro__)
                )
                if each.name in refused:
                    self._report(
                        node, f"{node.name} overrides {each.name}, which nothing calls here"
                    )
                elif (
                    (line := decisions.missing(cls, each.name))
                    and not decisions.is_called(line)
                    and not issubclass(cls, StrategyNames)
                ):
                    self._report(
                        each,
                        f"nothing calls {each.name} here: {decisions.reason(line)}",
                        fails=False,
                    )

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer, self.kinds = self.kinds, dict(self.kinds)
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        is_method = bool(self.inside) and node in (
            self.inside[-1].own.body if self.inside[-1].own else ()
        )
        for index, each in enumerate(given):
            kind = None if each.annotation is None else self._class(each.annotation)
            if is_method and index == 0 and each.arg == "self":
                kind = self.inside[-1]
            elif is_method and each.arg == "trainer" and issubclass(self.inside[-1].cls, Callback):
                kind = Kind(Trainer)
            self.kinds.pop(each.arg, None)
            if kind is not None:
                self.kinds[each.arg] = kind
        self.generic_visit(node)
        self.kinds = outer

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        kind = self._kind(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.kinds.pop(target.id, None)
                if kind is not None:
                    self.kinds[target.id] = kind
            else:
                self.visit(target)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if (dotted := self._dotted(node)) is not None:
            self._check_name(node, _known_part(dotted))
            return
        if (kind := self._kind(node.value)) is not None and not node.attr.startswith("__"):
            (self._check_set if _is_store(node) else self._check_read)(node, kind)
        self.generic_visit(node)

    def _check_read(self, node: ast.Attribute, kind: Kind) -> None:
        self._use(node, f"{kind.cls.__name__}.{node.attr}")
        line = decisions.missing(kind.cls, node.attr)
        is_super = isinstance(node.value, ast.Call) and _name_of(node.value.func) == "super"
        may_be_own = node.attr in self.assigned or self._has_own(kind, node.attr)
        if node.attr in members(kind.cls) or (may_be_own and not is_super):
            return
        is_closed = issubclass(kind.cls, Trainer | nn.Module) or not hasattr(
            kind.cls, "__getattr__"
        )
        if line or (is_closed and not self.is_open):
            why = f": {decisions.reason(line)}" if line else ""
            self._report(node, f"core-lightning's {kind.cls.__name__} has no {node.attr}{why}")

    def _has_own(self, kind: Kind, name: str) -> bool:
        """True if the program's own class may have such an attribute: one that can't be seen may
        come from anywhere.
        """
        if kind.own is None:
            return False
        if any(
            self._class(base) is None and _name_of(base) not in ("ABC", "object")
            for base in kind.own.bases
        ):
            return True
        bases = [self.classes.get(_name_of(base)) for base in kind.own.bases]
        own = {_name_of(each) for node in kind.own.body for each in _defined(node)}
        return name in own or any(base is not None and self._has_own(base, name) for base in bases)

    def _check_set(self, node: ast.Attribute, kind: Kind) -> None:
        cls, name = kind.cls, node.attr
        self._use(node, f"{cls.__name__}.{name} =")
        if self._has_own(kind, name):
            return
        static = inspect.getattr_static(cls, name, None)
        is_fixed = isinstance(static, property) and static.fset is None
        is_frozen = getattr(getattr(cls, "__dataclass_params__", None), "frozen", False)
        if issubclass(cls, Trainer) and name in FIXED:
            self._report(node, f"trainer.{name} can't be set here: {FIXED[name]}")
        elif is_fixed or (is_frozen and not isinstance(static, property)):
            self._report(node, f"{cls.__name__}.{name} can't be set here")
        elif kind.own is None and (line := decisions.missing(cls, name)):
            self._report(
                node,
                f"nothing reads {cls.__name__}.{name} here: {decisions.reason(line)}",
                fails=False,
            )

    def visit_Call(self, node: ast.Call) -> None:
        made = self._class(node.func)
        if made is not None:
            self._check_made(node, made)
        elif (
            isinstance(node.func, ast.Attribute)
            and (kind := self._kind(node.func.value)) is not None
        ):
            name = node.func.attr
            self._use(node, *(f"{kind.cls.__name__}.{name}({key.arg}=)" for key in node.keywords))
            static = inspect.getattr_static(kind.cls, name, None)
            if inspect.isfunction(static) and not self._has_own(kind, name):
                self._check_arguments(node, f"{kind.cls.__name__}.{name}", static)
        self.generic_visit(node)

    def _check_made(self, node: ast.Call, made: Kind) -> None:
        name = made.cls.__name__
        self._use(node, f"{name}()", *(f"{name}({key.arg}=)" for key in node.keywords))
        if made.cls.__module__ == names.STAND_INS:
            self._report(node, f"{name} is not on core, and making one is an error")
        elif not self._has_own(made, "__init__"):
            self._check_arguments(node, name, made.cls.__init__)

    def _check_arguments(self, node: ast.Call, name: str, function: Any) -> None:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        by_position = [
            each
            for each in parameters
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
        kinds = {each.kind for each in parameters}
        known = {*(each.name for each in parameters), "pl_module"}  # which hooks take
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            for key in node.keywords:
                if key.arg is not None and key.arg not in known:
                    self._report(node, f"core-lightning has no {name}({key.arg}=)")
        is_starred = any(isinstance(each, ast.Starred) for each in node.args)
        if (
            not is_starred
            and inspect.Parameter.VAR_POSITIONAL not in kinds
            and len(node.args) > len(by_position)
        ):
            self._report(
                node, f"core-lightning's {name} takes {len(by_position)} arguments by position"
            )


def _is_store(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store)


def _name_of(node: ast.AST | None) -> str:
    return (
        getattr(node, "id", None)
        or getattr(node, "attr", None)
        or getattr(node, "name", None)
        or ""
    )


def _defined(node: ast.stmt) -> Iterator[ast.AST]:
    """The names that a statement in a class's body defines."""
    yield from getattr(node, "targets", None) or [getattr(node, "target", node)]


def _full(module: str) -> str | None:
    """The module under its longer name; None if it isn't one of Lightning's."""
    root, dot, rest = module.partition(".")
    return f"{_SHORT.get(root, root)}{dot}{rest}" if root in ("lightning", *_SHORT) else None


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
    return (
        attribute in names.MODULES.get(module, {})
        or name in names.MODULES
        or attribute.startswith("__")
    )


@cache
def _class_named(name: str) -> Any:
    """Our class of that name of Lightning's; None if it is none."""
    module, _, attribute = name.rpartition(".")
    target = names.MODULES.get(module, {}).get(attribute)
    if target is None:
        return None
    place, _, own = target.partition(":")
    found = getattr(import_module(place), own, None)
    return found if inspect.isclass(found) else None


@cache
def _kind_of_attribute(cls: Any, name: str) -> Kind | None:
    if name == "trainer" and issubclass(cls, nn.Module | Callback):
        return Kind(Trainer)
    if name == "strategy" and issubclass(cls, Trainer):
        return Kind(named(import_module("core.strategies").SingleDeviceStrategy))
    static = inspect.getattr_static(cls, name, None)
    found = static.fget if isinstance(static, property) else None
    if inspect.isfunction(found):
        annotation, names_there = found.__annotations__.get("return"), found.__globals__
        found = names_there.get(annotation) if isinstance(annotation, str) else annotation
    return (
        Kind(found)
        if inspect.isclass(found) and found.__module__.startswith("core_lightning")
        else None
    )


@cache
def members(cls: Any) -> frozenset[str]:
    """The names that objects of a class have, also those that its methods assign."""
    found = {*dir(cls)}
    for each in cls.__mro__:
        found |= getattr(each, "__annotations__", {}).keys()
        if each.__module__.startswith("core"):
            found |= _assigned(each.__module__).get(each.__name__, set())
    return frozenset(found)


@cache
def _assigned(module: str) -> dict[str, set[str]]:
    path = getattr(sys.modules.get(module), "__file__", None)
    classes = (
        [each for each in ast.walk(_parsed(Path(path))) if isinstance(each, ast.ClassDef)]
        if path
        else []
    )
    return {
        each.name: {
            node.attr
            for node in ast.walk(each)
            if isinstance(node, ast.Attribute) and _is_store(node)
        }
        for each in classes
    }
