"""The parts of a model, in the order in which they are applied, and how they become stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import nn

from core import ModuleError
from core_parallel.stages import balance, found_blocks, named_parts, part_times, planned_parts
from core_parallel.stages.cut import Cut
from core_parallel.stages.named_parts import Found
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
    within = ""
    if given is not None:
        within = named_parts.of_one(user, given)
    if given is None or within:
        name, module, parts = _found(user, within)
    else:
        name, module, parts = named_parts.find(user, given)
    measure = measure or partial(part_times.measure, user)
    title = _title(name, module)
    stages = balance.stages(title, parts, num_stages, balanced, measure)
    modules, own, called = dict(module.named_modules()), set(parts), [module]
    inner = named_parts.innermost(modules, [key for key, one in modules.items() if one in own])
    if inner:
        called.append(modules[inner])
    return Cut(tuple(called), tuple(stages), Replay(called, title, parts))


def _found(user: nn.Module, within: str) -> Found:
    """The module that says its parts, or has a plan, or is a sequence, or has blocks, in one of the
    user's.
    """
    declared = _within(within, _declaring(user))
    if declared:
        name, module, _ = _only(user, declared)
        return name, module, _parts_of(name, module)
    planned = _within(within, planned_parts.find(user))
    sequences = _within(within, _sequences("", user))
    if not planned and len(sequences) != 1:
        planned = found_blocks.find(user, within)
    return _only(user, planned or sequences)


def _declaring(user: nn.Module) -> Iterator[Found]:
    """The outermost modules with a method `pipeline`."""
    outermost: list[str] = []
    for name, part in user.named_modules():
        is_inside = any(_is_within(name, other) for other in outermost)
        if callable(getattr(part, "pipeline", None)) and not is_inside:
            outermost.append(name)
            yield name, part, []


def _sequences(prefix: str, module: nn.Module) -> Iterator[Found]:
    """The outermost `nn.Sequential`s of more than one part."""
    if isinstance(module, nn.Sequential) and len(module) > 1:
        yield prefix, module, [*module]  # children() would leave out what it has twice
        return
    for name, child in module.named_children():
        yield from _sequences(f"{prefix}.{name}".strip("."), child)


def _only(user: nn.Module, found: list[Found]) -> Found:
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
    names = ", ".join(repr(name) for name, *_ in found)
    raise ModuleError(
        f"{title} has several modules that could be cut: {names}. Name the one that is to be, as "
        f"in parts=[{found[0][0]!r}]; all ranks have the others whole. Or add a method pipeline() "
        f"to it, or to {title} itself, that returns its parts in the order in which forward "
        "applies them."
    )


def _parts_of(name: str, module: Any) -> list[nn.Module]:
    """The modules among the parts that a module says. What functions among them do, forward
    does.
    """
    parts = list(module.pipeline())
    own = [one for one in module.modules() if one is not module]
    for part in parts:
        is_own = part in own and not isinstance(part, nn.ModuleList)
        if not is_own and (isinstance(part, nn.Module) or not callable(part)):
            raise ModuleError(
                f"{_title(name, module)}.pipeline() returned {part!r:.60}; expected modules that "
                "it has as attributes, and functions between them, as in [self.embed, "
                "*self.blocks, self.head]."
            )
    return [one for one in parts if isinstance(one, nn.Module)]


def _within(other: str, found: Iterable[Found]) -> list[Found]:
    return [one for one in found if _is_within(one[0], other)]


def _is_within(name: str, other: str) -> bool:
    return not other or f"{name}.".startswith(f"{other}.")


def _title(name: str, module: nn.Module) -> str:
    return f"{type(module).__name__} {name!r}".removesuffix(" ''")
