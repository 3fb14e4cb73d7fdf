"""The parts of a model, in the order in which they are applied, and how they become stages."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

from torch import nn

from core import ModuleError
from core_parallel.stages import balance, found_blocks, named_parts, part_times, planned_parts
from core_parallel.stages.cut import Cut
from core_parallel.stages.replay import Replay


def cut(
    user: nn.Module,
    num_stages: int,
    given: Sequence[str | Callable[..., Any]] | None = None,
    balanced: balance.Balance = "parameters",
    measure: balance.Measure | None = None,
) -> Cut:
    """Find the module's parts, and make stages of them.

    Args:
        user: has a method `pipeline()`, or one module in it has; or a config with a plan; or it is
            an `nn.Sequential`, or has one.
        num_stages: number of stages.
        given: the parts by names in it, which count instead; or the name of the one of several
            models that is cut.
        balanced: how many parts each stage gets.
        measure: the seconds that parts take; None measures them here.

    Raises:
        ModuleError: the parts can't be found, or not cut into so many stages.
        ConfigurationError: a name fits no module, or numbers of parts don't add up.
    """
    one = None if given is None else named_parts.of_one(user, given)
    if given is not None and one is None:
        (name, module, parts), is_said = named_parts.find(user, given), True
    else:
        name, module, parts, is_said = _found(user, one or "")
    measure = measure or partial(part_times.measure, user)
    title = _title(name, module)
    stages = balance.stages(title, parts, num_stages, balanced, measure, are_apart=not is_said)
    inner = _inner(module, parts) if is_said else None
    called = [module] if inner is None else [module, inner]
    replay = None if _is_sequence_of(module, parts) else Replay(called, title, parts)
    return Cut(module, name, tuple(stages), replay, inner)


def _is_sequence_of(module: nn.Module, parts: Sequence[nn.Module]) -> bool:
    """True if the call of a module is known to be that of these parts, one after the other."""
    return (
        isinstance(module, nn.Sequential)
        and getattr(module.forward, "__func__", None) is nn.Sequential.forward
        and len(parts) == len(module)
        and all(map(operator.is_, parts, module))
    )


def _declaring(user: nn.Module) -> list[tuple[str, nn.Module]]:
    """The outermost modules with a method `pipeline`."""
    declared = [
        (name, part)
        for name, part in user.named_modules()
        if callable(getattr(part, "pipeline", None))
    ]
    return [one for one in declared if not any(_is_in(one[0], other[0]) for other in declared)]


def _found(user: nn.Module, within: str) -> tuple[str, nn.Module, list[nn.Module], bool]:
    """The module that says its parts, or has a plan, or is a sequence, or has blocks, in one of the
    user's; its parts, and whether it says them, or is a sequence.
    """
    declared = [one for one in _declaring(user) if _is_within(one[0], within)]
    plans = (
        [] if declared else [one for one in planned_parts.find(user) if _is_within(one[0], within)]
    )
    sequences = [one for one in _sequences("", user) if _is_within(one[0], within)]
    if not declared and not plans and len(sequences) != 1:
        plans = found_blocks.find(user, within)
    if len(plans) == 1:
        name, module, modules = plans[0]
        return name, module, [*modules], False
    name, module = _only(user, declared or [(name, one) for name, one, _ in plans] or sequences)
    return name, module, _parts_of(name, module), True


def _only(user: nn.Module, found: list[tuple[str, nn.Module]]) -> tuple[str, nn.Module]:
    if len(found) == 1:
        return found[0]
    title = type(user).__name__
    if not found:
        raise ModuleError(
            f"{title} doesn't say what its parts are. Add `def pipeline(self): return [self.embed, "
            "*self.blocks, self.head]` to it: its parts in the order in which forward applies "
            "them, each to the result of the one before. For a model that can't be changed, give "
            "the strategy their names, parts=['embed', 'blocks.*', 'head']."
        )
    names = ", ".join(repr(name) for name, _ in found)
    raise ModuleError(
        f"{title} has several modules that could be cut: {names}. Name the one that is to be, as "
        f"in parts=[{found[0][0]!r}]; all ranks have the others whole. Or add a method pipeline() "
        f"to it, or to {title} itself, that returns its parts in the order in which forward "
        "applies them."
    )


def _sequences(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The outermost `nn.Sequential`s of more than one part."""
    if isinstance(module, nn.Sequential) and len(module) > 1:
        yield prefix, module
        return
    for name, child in module.named_children():
        yield from _sequences(f"{prefix}.{name}" if prefix else name, child)


def _parts_of(name: str, module: nn.Module) -> list[nn.Module]:
    declared = getattr(module, "pipeline", None)
    # children() would leave out what a sequence has twice.
    parts = list(declared()) if callable(declared) else list(cast("nn.Sequential", module))
    for index, part in enumerate(parts):
        if not callable(part) or isinstance(part, nn.ModuleList):
            raise ModuleError(
                f"{_title(name, module)}.pipeline() returned {part!r:.60} at position {index}; "
                "expected modules, and functions between them, as in [self.embed, *self.blocks, "
                "self.head]."
            )
    own = {id(one) for one in module.modules()}
    for part in parts:
        if isinstance(part, nn.Module) and (id(part) not in own or part is module):
            raise ModuleError(
                f"{_title(name, module)}.pipeline() returned a {type(part).__name__} that is no "
                "part of the module. Keep the parts as attributes, and return these."
            )
    # what functions among them do, forward does
    return [one for one in parts if isinstance(one, nn.Module)]


def _inner(module: nn.Module, parts: Sequence[nn.Module]) -> nn.Module | None:
    """The innermost module that has all parts and is called, if it is another one."""
    modules = dict(module.named_modules())
    own = {id(part) for part in parts}
    inner = modules[
        named_parts.innermost(modules, [name for name, one in modules.items() if id(one) in own])
    ]
    return None if inner is module else inner


def _is_in(name: str, other: str) -> bool:
    return name != other and (not other or name.startswith(other + "."))


def _is_within(name: str, other: str) -> bool:
    return name == other or _is_in(name, other)


def _title(name: str, module: nn.Module) -> str:
    return f"{type(module).__name__} ({name!r})" if name else type(module).__name__
