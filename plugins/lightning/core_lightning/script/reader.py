"""Reads a file of a program for Lightning: what it uses, and the lines that fail or differ here."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from core import Callback
from core_lightning.decisions import reasons
from core_lightning.names.modules import STAND_INS, is_lightnings, long_name
from core_lightning.script.classes import (
    Kind,
    class_named,
    is_stored,
    is_there,
    kind_of_attribute,
    known_part,
    members,
    name_of,
    parsed,
)
from core_lightning.strategies.strategy_names import NEVER_CALLED, StrategyNames
from core_lightning.trainer.trainer import Trainer
from core_lightning.trainer.trainer_attributes import FIXED

_GUARDS = {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception"}
_MAKE_NAMES = ("setattr", "register_buffer", "register_parameter", "register_module", "add_module")
_ASK_FOR_NAMES = ("hasattr", "getattr")


class Finding(NamedTuple):
    """A line of a program that isn't what it is under Lightning, and whether the program ends
    there.
    """

    path: Path
    line: int
    text: str
    fails: bool = True

    @property
    def place(self) -> str:
        """File and line, for the verdict."""
        return f"{self.path.name}:{self.line}"


class Reader(ast.NodeVisitor):
    """Walks through a file once, with the kinds of objects that names have where they stand.

    Attributes:
        found: the lines that fail or differ.
        uses: what the program uses, each with its first place.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: list[Finding] = []
        self.uses: dict[str, tuple[Path, int]] = {}
        self._bound: dict[str, str] = {}  # by imports, to names of Lightning's
        self._kinds: dict[str, Kind] = {}
        self._classes: dict[str, Kind] = {}
        self._inside: list[Kind] = []
        self._methods: dict[ast.stmt, Kind] = {}  # each with its class
        self._is_guarded = False
        self._assigned: set[str] = set()
        self._assigns_any = False
        for node in ast.walk(parsed(path)):
            if is_stored(node):
                self._assigned.add(name_of(node))
            elif isinstance(node, ast.Call):
                self._note_named(node)

    def _note_named(self, node: ast.Call) -> None:
        """Note the attributes that a call such as `setattr` makes, or asks for."""
        function = name_of(node.func)
        makes = function in _MAKE_NAMES
        if makes or function in _ASK_FOR_NAMES:
            texts = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
            self._assigned.update(map(str, texts))
            if makes and not texts:
                self._assigns_any = True

    def _report(self, node: Any, text: str, *, fails: bool = True) -> None:
        if not self._is_guarded:
            self.found.append(Finding(self.path, node.lineno, text, fails))

    def _use(self, node: Any, use: str) -> None:
        self.uses.setdefault(use, (self.path, node.lineno))

    def _bind(self, name: str, kind: Kind | None) -> None:
        self._kinds.pop(name, None)
        if kind is not None:
            self._kinds[name] = kind

    # imports --------------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        """Note the names that are bound, and report those that aren't there."""
        for alias in node.names:
            if not is_lightnings(alias.name):
                continue
            root = alias.name.partition(".")[0]
            if alias.asname:
                self._bound[alias.asname] = long_name(alias.name)
            else:
                self._bound[root] = long_name(root)
            self._check_name(node, long_name(alias.name))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Likewise."""
        if node.level or not is_lightnings(node.module or ""):
            return
        for alias in node.names:
            if alias.name != "*":
                name = long_name(f"{node.module}.{alias.name}")
                self._bound[alias.asname or alias.name] = name
                self._check_name(node, name)

    def visit_Try(self, node: ast.Try) -> None:
        """Report nothing of what is guarded."""
        caught: set[str] = set()
        for handler in node.handlers:
            kinds = handler.type or ast.Name("Exception")
            caught.update(name_of(each) for each in ast.walk(kinds))
        before = self._is_guarded
        self._is_guarded = before or bool(caught & _GUARDS)
        self._visit_all(node.body)
        self._is_guarded = before
        self._visit_all([*node.handlers, *node.orelse, *node.finalbody])

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for each in nodes:
            self.visit(each)

    def _check_name(self, node: ast.AST, name: str) -> None:
        if not is_there(name):
            self._report(node, f"core-lightning has no {name}")

    # kinds of objects -----------------------------------------------------------------------------

    def _dotted(self, node: ast.expr) -> str | None:
        """The whole name of something that an import has bound."""
        if isinstance(node, ast.Attribute):
            owner = self._dotted(node.value)
            return owner and f"{owner}.{node.attr}"
        if isinstance(node, ast.Name) and node.id not in self._kinds:
            return self._bound.get(node.id)
        return None

    def _class(self, node: ast.expr | None) -> Kind | None:
        """The class that an expression is, if it is one of Lightning's or derived from one."""
        if isinstance(node, ast.Constant) and str(node.value).replace(".", "").isidentifier():
            node = ast.parse(str(node.value), mode="eval").body  # an annotation
        if node is None:
            return None
        if isinstance(node, ast.Name) and node.id in self._classes:
            return self._classes[node.id]
        found = class_named(self._dotted(node) or "")
        return found and Kind(found)

    def _kind(self, node: ast.expr) -> Kind | None:
        """The kind of object that an expression gives."""
        if isinstance(node, ast.Name):
            return self._kinds.get(node.id)
        if isinstance(node, ast.Call):
            if _is_super(node) and self._inside:
                return Kind(self._inside[-1].cls)
            return self._class(node.func)
        if isinstance(node, ast.Attribute):
            owner = self._kind(node.value)
            return owner and kind_of_attribute(owner.cls, node.attr)
        return None

    # statements -----------------------------------------------------------------------------------

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Note a class that is derived from one of Lightning's, and check what it overrides."""
        kinds = [self._class(base) for base in node.bases]
        first = next((kind for kind in kinds if kind is not None), None)
        if first is None:
            self._visit_scope(node)
            return
        kind = Kind(first.cls, node)
        self._classes[node.name] = kind
        self._methods |= dict.fromkeys(node.body, kind)
        self._check_overrides(node, kind.cls)
        self._inside.append(kind)
        self._visit_scope(node)
        self._inside.pop()

    def _visit_scope(self, node: ast.AST) -> None:
        outer = dict(self._kinds)
        self.generic_visit(node)
        self._kinds = outer

    def _check_overrides(self, node: ast.ClassDef, cls: Any) -> None:
        is_strategy = issubclass(cls, StrategyNames)
        refused = NEVER_CALLED if is_strategy else getattr(cls, "uncalled", ())
        for each in node.body:
            if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            self._use(each, each.name)
            for base in cls.__mro__:
                self._use(each, f"{base.__name__}.{each.name}")
            line = reasons.missing(cls, each.name)
            if each.name in refused:
                self._report(node, f"{node.name} overrides {each.name}, which nothing calls here")
            elif line and not is_strategy and not reasons.is_called(line):
                said = f"nothing calls {each.name} here: {reasons.reason(line)}"
                self._report(each, said, fails=False)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Note the kinds of the arguments, for the body."""
        outer = dict(self._kinds)
        owner = self._methods.get(node)
        for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            kind = self._class(each.annotation)
            if owner is not None and each.arg == "self":
                kind = owner
            elif owner is not None and each.arg == "trainer" and issubclass(owner.cls, Callback):
                kind = Kind(Trainer)
            self._bind(each.arg, kind)
        self.generic_visit(node)
        self._kinds = outer

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Assign(self, node: ast.Assign) -> None:
        """Note the kind of what is assigned."""
        self.visit(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._bind(target.id, self._kind(node.value))
            else:
                self.visit(target)

    # attributes -----------------------------------------------------------------------------------

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Check a name of a module, or an attribute of an object whose kind is known."""
        dotted = self._dotted(node)
        if dotted is not None:
            self._check_name(node, known_part(dotted))
            return
        kind = self._kind(node.value)
        if kind is not None and not node.attr.startswith("__"):
            if is_stored(node):
                self._check_set(node, kind)
            else:
                self._check_read(node, kind)
        self.generic_visit(node)

    def _check_read(self, node: ast.Attribute, kind: Kind) -> None:
        cls, name = kind.cls, node.attr
        self._use(node, f"{cls.__name__}.{name}")
        if name in members(cls):
            return
        if not _is_super(node.value) and (name in self._assigned or self._has_own(kind, name)):
            return
        line = reasons.missing(cls, name)
        said = f"core-lightning's {cls.__name__} has no {name}"
        is_closed = issubclass(cls, Trainer | nn.Module) or not hasattr(cls, "__getattr__")
        if line:
            self._report(node, f"{said}: {reasons.reason(line)}")
        elif is_closed and not self._assigns_any:
            self._report(node, said)

    def _has_own(self, kind: Kind, name: str) -> bool:
        """True if the program's own class may have such an attribute: one that can't be seen may
        come from anywhere.
        """
        if kind.own is None:
            return False
        own = {name_of(each) for node in kind.own.body for each in _defined(node)}
        if name in own:
            return True
        for base in kind.own.bases:
            known = self._class(base)
            if known is None and name_of(base) not in ("ABC", "object"):
                return True
            known = self._classes.get(name_of(base))
            if known is not None and self._has_own(known, name):
                return True
        return False

    def _check_set(self, node: ast.Attribute, kind: Kind) -> None:
        cls, name = kind.cls, node.attr
        self._use(node, f"{cls.__name__}.{name} =")
        if self._has_own(kind, name):
            return
        static = inspect.getattr_static(cls, name, None)
        is_fixed = getattr(getattr(cls, "__dataclass_params__", None), "frozen", False)
        if isinstance(static, property):
            is_fixed = static.fset is None
        line = reasons.missing(cls, name)
        if issubclass(cls, Trainer) and name in FIXED:
            self._report(node, f"trainer.{name} can't be set here: {FIXED[name]}")
        elif is_fixed:
            self._report(node, f"{cls.__name__}.{name} can't be set here")
        elif kind.own is None and line:
            said = f"nothing reads {cls.__name__}.{name} here: {reasons.reason(line)}"
            self._report(node, said, fails=False)

    # calls ----------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        """Check the arguments of a class or method that is known."""
        made = self._class(node.func)
        if made is not None:
            self._check_made(node, made)
        elif isinstance(node.func, ast.Attribute):
            owner = self._kind(node.func.value)
            if owner is not None:
                self._check_method(node, owner, node.func.attr)
        self.generic_visit(node)

    def _check_method(self, node: ast.Call, owner: Kind, method: str) -> None:
        name = f"{owner.cls.__name__}.{method}"
        self._use_arguments(node, name)
        static = inspect.getattr_static(owner.cls, method, None)
        if inspect.isfunction(static) and not self._has_own(owner, method):
            self._check_arguments(node, name, static)

    def _check_made(self, node: ast.Call, made: Kind) -> None:
        name = made.cls.__name__
        self._use(node, f"{name}()")
        self._use_arguments(node, name)
        if made.cls.__module__ == STAND_INS:
            self._report(node, f"{name} is not on core, and making one is an error")
        elif not self._has_own(made, "__init__"):
            self._check_arguments(node, name, made.cls.__init__)

    def _use_arguments(self, node: ast.Call, name: str) -> None:
        for key in node.keywords:
            self._use(node, f"{name}({key.arg}=)")

    def _check_arguments(self, node: ast.Call, name: str, function: Any) -> None:
        signature = inspect.signature(function)
        known = signature.parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in known.values())
        for key in node.keywords:
            if not takes_any and key.arg not in {None, "pl_module", *known}:  # hooks take it
                self._report(node, f"core-lightning has no {name}({key.arg}=)")
        try:
            signature.bind_partial(
                None, *(each for each in node.args if not isinstance(each, ast.Starred))
            )
        except TypeError as error:
            self._report(node, f"core-lightning's {name}: {error}")


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and name_of(node.func) == "super"


def _defined(node: ast.stmt) -> Iterable[ast.AST]:
    """The names that a statement in a class's body defines."""
    return getattr(node, "targets", None) or [getattr(node, "target", node)]
