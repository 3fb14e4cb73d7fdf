"""Compares the public names of Lightning, their arguments and members, with core-lightning's.

    python plugins/lightning/tests/signatures.py record    # an environment with lightning==2.6.6
    python plugins/lightning/tests/signatures.py diff      # core's; what differs, one a line
    python plugins/lightning/tests/signatures.py table     # core's

The first writes `data/signatures.json`. The last writes `core_lightning/decisions/missing.txt`, which
`--explain` reads, and the tables of `docs/lightning-differences.md`, from the decisions in
`core_lightning/decisions/differences.toml`: patterns of what differs, each with a reason.
`test_signatures.py` fails on a difference without one, and on a pattern of nothing.
"""

import ast
import functools
import importlib
import inspect
import json
import sys
import textwrap
import tomllib
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path

HERE = Path(__file__).resolve().parent
RECORD = HERE / "data" / "signatures.json"
PACKAGE = HERE.parent / "core_lightning"
DECISIONS = PACKAGE / "decisions" / "differences.toml"
MISSING = PACKAGE / "decisions" / "missing.txt"
PAGE = HERE.parents[2] / "docs" / "lightning-differences.md"
BEGIN, END = "<!-- signatures.py writes this table -->", "<!-- the table ends -->"
_PARTS = {
    "pytorch": "callbacks loggers strategies profilers accelerators plugins plugins.environments plugins.io "
    "plugins.precision tuner utilities cli core trainer",
    "fabric": "strategies accelerators loggers plugins plugins.environments utilities wrappers",
}
PACKAGES = [
    name
    for root, parts in _PARTS.items()
    for name in (root, *(f"{root}.{part}" for part in parts.split(" ")))
]
SKIPPED = ("self", "cls")


# what a library has -------------------------------------------------------------------------------


def arguments(function):
    """Names with defaults, in order; those by position; whether any others are taken. None if
    nobody knows.
    """
    try:
        parameters = [
            item
            for name, item in inspect.signature(function).parameters.items()
            if name not in SKIPPED
        ]
    except (TypeError, ValueError):
        return None
    named = [
        item for item in parameters if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
    ]
    defaults = {
        item.name: "" if item.default is item.empty else shown(item.default) for item in named
    }
    return [
        defaults,
        [item.name for item in named if item.kind is not item.KEYWORD_ONLY],
        named != parameters,
    ]


def shown(default):
    if isinstance(default, tuple):
        return f"({', '.join(map(shown, default))})"
    if isinstance(default, Enum):
        return repr(default.value)
    return repr(default) if isinstance(default, int | float | str | type(None)) else "..."


@functools.cache
def attributes(cls):
    """Names that methods of the class assign to `self`."""
    owned = [each for each in cls.__mro__ if each.__module__.startswith(("lightning", "core"))]
    nodes = [
        node for each in owned for node in ast.walk(source(each)) if isinstance(node, ast.Attribute)
    ]
    assigned = {
        node.attr
        for node in nodes
        if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
    return {name for name in assigned if not name.startswith("_")}


def source(cls):
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except OSError:  # one that a function has made
        return ast.parse("")


def member(cls, name):
    """Arguments of a method, or `"property"`, `"setter"` or `"value"`."""
    found = inspect.getattr_static(cls, name, None)
    found = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    if isinstance(found, property):
        return "setter" if found.fset else "property"
    return arguments(found) if inspect.isfunction(found) else "value"


def public(module):
    for name in getattr(module, "__all__", dir(module)):
        thing = getattr(module, name)
        is_own = hasattr(module, "__all__") or str(getattr(thing, "__module__", "")).startswith(
            "lightning"
        )
        if not name.startswith("_") and not inspect.ismodule(thing) and is_own:
            yield name, thing


def record():
    """Lightning's things, each once: its names, arguments, bases, and members that no base has in
    the same form.
    """
    things = {}
    for package in PACKAGES:
        for name, thing in public(importlib.import_module(f"lightning.{package}")):
            is_made = inspect.isclass(thing) or inspect.isfunction(thing)
            key = id(thing) if is_made else f"{package}.{name}"
            things.setdefault(key, (thing, []))[1].append(f"{package}.{name}")
    first = {key: names[0] for key, (_, names) in things.items()}
    return [described(thing, names, first) for thing, names in things.values()]


@functools.cache
def members(cls):
    own = [each for each in cls.__mro__ if each.__module__.startswith("lightning")]
    names = {name for each in own for name in vars(each)} | attributes(cls)
    return {name: member(cls, name) for name in sorted(names) if not name.startswith("_")}


def described(thing, names, first):
    found = {"names": names}
    if inspect.isclass(thing):
        bases = [each for each in thing.__mro__[1:] if id(each) in first]
        has = members(thing)
        inherited = {name: form for each in reversed(bases) for name, form in members(each).items()}
        found["takes"] = arguments(thing.__init__)
        found["bases"] = [first[id(each)] for each in bases]
        found["has"] = {name: form for name, form in has.items() if inherited.get(name) != form}
    elif inspect.isfunction(thing):
        found["takes"] = arguments(thing)
    return found


# what differs -------------------------------------------------------------------------------------


def compared(what, theirs, ours):
    """The arguments that differ, one a line."""
    if theirs is None or ours is None:
        return
    (defaults, order, they_take_more), (own, own_order, is_open) = theirs, ours
    renamed = {
        a: b for a, b in zip(order, own_order, strict=False) if a not in own and b not in defaults
    }
    for name, default in defaults.items():
        if name in renamed:
            yield f"{what}({name}=): here {renamed[name]}"
        elif name not in own:
            yield from () if is_open else (f"{what}({name}=)",)
        elif own[name] != default:
            yield f"{what}({name}={default}): here {own[name] or 'needed'}"
    common = [renamed.get(name, name) for name in order if name in own or name in renamed]
    if not is_open and own_order[: len(common)] != common:
        yield f"{what}(): here {', '.join(own_order) or 'by keyword'}"
    for name, default in own.items():
        if (
            not default
            and not they_take_more
            and name not in defaults
            and name not in renamed.values()
        ):
            yield f"{what}({name}): needed"


def differences(theirs):
    """What core-lightning has otherwise than the record of Lightning says, one a line; once for a
    class and a base.
    """
    by_name = {each["names"][0]: each for each in theirs}
    found = {
        name: set(of_class(name, each, by_name)) for name, each in by_name.items() if "has" in each
    }
    for name, each in by_name.items():
        said = {line for base in each.get("bases", ()) for line in found.get(base, ())}
        yield from (alias for alias in each["names"] if looked_up(alias) is None)
        ours = looked_up(name)
        if is_stand_in(ours):
            yield f"{name}: refused"
        elif ours is not None:
            yield from compared(
                name, each.get("takes"), arguments(ours.__init__ if "has" in each else ours)
            )
            yield from sorted(f"{name}.{line}" for line in found.get(name, set()) - said)


def looked_up(name):
    package, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(f"lightning.{package}"), attribute, None)


def is_stand_in(thing):
    return getattr(thing, "__module__", "") == "core_lightning.decisions.stand_ins"


def of_class(name, thing, by_name):
    """The members that differ, those of bases too, without the name of the class."""
    ours = looked_up(name)
    if ours is None or is_stand_in(ours):
        return
    has = {
        item: form
        for base in reversed(thing["bases"])
        for item, form in by_name[base]["has"].items()
    } | thing["has"]
    own = attributes(ours)
    for item, form in has.items():
        if not hasattr(ours, item) and item not in own:
            yield item
            continue
        here = member(ours, item)
        if isinstance(form, list) and isinstance(here, list):
            yield from compared(item, form, here)
        elif isinstance(form, list) and here in ("property", "setter"):
            yield f"{item}(): here a {here}"
        elif (form, here) == ("setter", "property"):
            yield f"{item} = ..."


# the page -----------------------------------------------------------------------------------------


def decided(found, decisions):
    """For each decision, by index, what falls to it; under None what falls to none."""
    by_decision = {}
    for line in found:
        matching = (
            index
            for index, each in enumerate(decisions)
            for pattern in each["what"]
            if fnmatchcase(line, pattern)
        )
        by_decision.setdefault(next(matching, None), []).append(line)
    return by_decision


def tables(found, config):
    rows = ["| what differs | here | why |", "| --- | --- | --- |"]
    for index, lines in sorted(decided(found, config["decision"]).items()):
        each = config["decision"][index]
        what = ", ".join(f"`{pattern.removeprefix('pytorch.')}`" for pattern in each["what"])
        rows.append(f"| {what} ({len(lines)}) | {each['here']} | {each['why']} |")
    rows += ["", "| Lightning | core-lightning | why |", "| --- | --- | --- |"]
    return [
        *rows,
        *(
            f"| {each['lightning']} | {each['here']} | {each['why']} |"
            for each in config["behaviour"]
        ),
    ]


def written(page, rows):
    before, _, rest = page.partition(BEGIN)
    return "\n".join([before + BEGIN, "", *rows, "", END]) + rest.partition(END)[2]


def read():
    """What differs, and the decisions."""
    theirs = json.loads(RECORD.read_text(encoding="utf-8"))
    return list(differences(theirs)), tomllib.loads(DECISIONS.read_text(encoding="utf-8"))


def main(action):
    if action == "record":
        lines = ",\n".join(json.dumps(each) for each in record())
        RECORD.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        return
    importlib.import_module("core_lightning").install()
    found, config = read()
    if action == "diff":
        print(*found, sep="\n")
        return
    MISSING.write_text("\n".join(found) + "\n", encoding="utf-8")
    PAGE.write_text(
        written(PAGE.read_text(encoding="utf-8"), tables(found, config)), encoding="utf-8"
    )


if __name__ == "__main__":
    main(sys.argv[1])
