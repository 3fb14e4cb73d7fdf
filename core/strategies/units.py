"""The units of a model: its repeated blocks, by which it is sharded, checkpointed and compiled."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from core.contract import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_LISTS = (nn.ModuleList, nn.Sequential)
_LAZY = nn.UninitializedParameter
_LEAST_SHARE = 0.25
"""Of the largest list's parameters, what a list of another class has to hold to count beside it."""
_MOST_NAMED = 6


@dataclass(frozen=True, slots=True)
class Units:
    """A model's units, of which there may be none. The same on all ranks that have built the same
    model.

    Attributes:
        named: the modules, by their names in the model, in its order.
        reason: how they were found, or why there are none; for messages.
    """

    named: Mapping[str, nn.Module]
    reason: str

    def __bool__(self) -> bool:
        """True if there are any."""
        return bool(self.named)

    def __str__(self) -> str:
        """One line, such as `12 x Block (transformer.h.0 ... 11), from its largest ModuleList`."""
        if not self.named:
            return f"none: {self.reason}"
        return f"{self.summary}, {self.reason}"

    @property
    def summary(self) -> str:
        """The units alone, such as `12 x Block (transformer.h.0 ... 11)`; `none` if there are
        none.
        """
        kinds: dict[str, list[str]] = {}
        for name, module in self.named.items():
            kinds.setdefault(class_name(module), []).append(name)
        parts = [
            f"{len(names)} x {kind} ({', '.join(_cut(_spans(names)))})"
            for kind, names in kinds.items()
        ]
        return ", ".join(_cut(parts)) or "none"


def class_name(module: nn.Module) -> str:
    """The name of a module's class as its author knows it: torch may have put a class of its own,
    made of it, there.
    """
    made, *bases = type(module).__mro__
    home = sys.modules.get(made.__module__)
    if made.__module__.startswith("torch.") and not hasattr(home, made.__name__):
        for base in bases:
            if made.__name__.endswith(base.__name__):
                return base.__name__
    return made.__name__


def find_units(
    module: nn.Module,
    listed: Iterable[type[nn.Module] | str] | None = None,
    *,
    asked_by: str | None = None,
) -> Units:
    """Find a model's units. Parameters may be on meta, in shards, or lazy.

    They are the modules whose class is named in `_no_split_modules`, where the model or a part of
    it has that attribute. Otherwise they are the children of its largest `ModuleList` or
    `Sequential` of one class, and of further ones of that class or of nearly that size, such as an
    encoder's beside a decoder's.

    Args:
        module: the model, which is never its own unit.
        listed: layer classes, names of classes, or names of modules, where the user says which.
        asked_by: the option that needs some, as in `compile={'region': 'units'}`; None if there may
            be none.

    Raises:
        ConfigurationError: something that is listed isn't in the model; or there are none, and an
            option asks for some.
    """
    if listed is not None:
        found = _named_by_user(module, listed)
    else:
        found = _not_split(module) or _in_lists(module)
    if asked_by is not None and not found:
        raise ConfigurationError(
            f"{asked_by} means the repeated blocks of the model, and {found.reason}. Give a list "
            "instead: layer classes, or names of classes or modules."
        )
    return found


def _named_by_user(root: nn.Module, listed: Iterable[type[nn.Module] | str]) -> Units:
    if isinstance(listed, str | type):
        listed = [listed]
    parts = {name: part for name, part in root.named_modules() if part is not root}
    found: set[str] = set()
    for item in listed:
        matches = {name for name, part in parts.items() if _is_meant(item, name, part)}
        if not matches:
            kinds = sorted({type(part).__name__ for part in parts.values()})
            wanted = str(getattr(item, "__name__", item))
            raise ConfigurationError(
                f"{wanted!r} is listed as a unit, and no part of {type(root).__name__} is or has "
                f"that name.{did_you_mean(wanted, [*kinds, *parts])} It holds "
                f"{', '.join(_cut(kinds)) or 'nothing'}."
            )
        found |= matches
    return Units({name: part for name, part in parts.items() if name in found}, "as listed")


def _is_meant(item: type[nn.Module] | str, name: str, part: nn.Module) -> bool:
    if isinstance(item, str):
        return item in (name, type(part).__name__)
    return isinstance(part, item)


def _not_split(root: nn.Module) -> Units:
    """The outermost modules whose class is named by what is around them."""
    found: dict[str, nn.Module] = {}
    owners: dict[str, None] = {}
    seen: set[nn.Module] = set()

    def walk(around: nn.Module, prefix: str, names: frozenset[str], owner: str) -> None:
        own = getattr(around, "_no_split_modules", None) or ()
        if isinstance(own, str):
            own = (own,)
        if own:
            names, owner = names.union(own), type(around).__name__
        for name, part in around.named_children():
            if part in seen:
                continue
            seen.add(part)
            # By its bases too: a sharded module has a class of its own, that is made of the user's.
            if not names.isdisjoint(kind.__name__ for kind in type(part).__mro__):
                found[prefix + name] = part
                owners[owner] = None
            else:
                walk(part, f"{prefix}{name}.", names, owner)

    walk(root, "", frozenset(), "")
    return Units(found, f"named in _no_split_modules of {' and '.join(_cut(list(owners)))}")


def _in_lists(root: nn.Module) -> Units:
    found = [(name, part) for name, part in root.named_modules() if isinstance(part, _LISTS)]
    lists = [each for each in found if _repeats(each[1])]
    if not lists:  # a deep model may have been made with one layer
        found = [each for each in found if isinstance(each[1], nn.ModuleList)]
        lists = [each for each in found if _repeats(each[1], least=1)]
    sizes = {}
    for name, part in lists:
        parameters = (each for each in part.parameters() if not isinstance(each, _LAZY))
        sizes[name] = sum(each.numel() for each in parameters)
    if not any(sizes.values()):  # lazy, or with nothing on this rank for now
        sizes = {name: len(list(part.parameters())) for name, part in lists}
    lists = [(name, part) for name, part in lists if sizes[name]]
    if not lists:
        kind = type(root).__name__
        return Units({}, f"{kind} has no ModuleList or Sequential of several layers of one class")
    # Of lists of one size, and of one within another, the outer: it is registered first.
    largest, blocks = max(lists, key=lambda each: sizes[each[0]])
    chosen: list[str] = []
    units: dict[str, nn.Module] = {}
    for name, part in lists:
        is_near = sizes[name] >= _LEAST_SHARE * sizes[largest]
        is_within = any(not outer or name.startswith(f"{outer}.") for outer in chosen)
        if (is_near or _kind(part) is _kind(blocks)) and not is_within:
            chosen.append(name)
            for child, unit in part.named_children():
                units[f"{name}.{child}".removeprefix(".")] = unit
    reason = "from its largest ModuleList"
    if isinstance(blocks, nn.Sequential):
        reason = "from its largest Sequential"
    if len(chosen) > 1:
        reason += f", and {len(chosen) - 1} more"
    return Units(units, reason)


def _repeats(part: nn.Module, least: int = 2) -> bool:
    """True for so many callable layers of one class. Of a list of such lists, the inner ones
    repeat.
    """
    children = list(part.children())
    return (
        len(children) >= least
        and len({type(child) for child in children}) == 1
        and type(children[0]).forward is not nn.Module.forward
        and not any(isinstance(child, _LISTS) and _repeats(child) for child in children)
    )


def _kind(part: nn.Module) -> type[nn.Module]:
    return type(next(part.children()))


def _spans(names: Iterable[str]) -> list[str]:
    """Names of one list together, as in `transformer.h.0 ... 11`."""
    by_parent: dict[str, list[str]] = {}
    for name in names:
        by_parent.setdefault(name.rpartition(".")[0], []).append(name)
    spans = []
    for own in by_parent.values():
        lasts = [name.rpartition(".")[2] for name in own]
        if len(own) > 1 and "".join(lasts).isdigit():
            spans.append(f"{own[0]} ... {lasts[-1]}")
        else:
            spans += own
    return spans


def _cut(texts: list[str]) -> list[str]:
    if len(texts) <= _MOST_NAMED:
        return texts
    return [*texts[:_MOST_NAMED], f"and {len(texts) - _MOST_NAMED} more"]
