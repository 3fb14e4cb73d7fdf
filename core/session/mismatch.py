"""A state loaded into a module, and a readable difference where its names or shapes aren't those of
the module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract.errors import CheckpointError
from core.session import module_tree
from core.text.spelling import near_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

_MAX_SHOWN = 8


def load(module: nn.Module, state: Mapping[str, object], *, strict: bool) -> None:
    """Load a state by canonical names.

    Raises:
        CheckpointError: it doesn't fit; names and shapes that differ are listed.
    """
    fitting = module_tree.from_canonical(module, state)
    options = {}
    if not strict:  # the user's own method need not know it
        options["strict"] = False
    try:
        module.load_state_dict(fitting, **options)
    except RuntimeError as error:
        own = module_tree.to_canonical(module.state_dict())
        report = describe_mismatch(own, state) or str(error)
        raise CheckpointError(
            f"The checkpoint does not fit {type(module).__name__}.\n{report}"
        ) from error


def describe_mismatch(expected: Mapping[str, object], found: Mapping[str, object]) -> str:
    """One line for each kind of difference; empty if there is none.

    Args:
        expected: what the module has: values with a shape, or others, by name.
        found: what the checkpoint has.
    """
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    shapes = [
        f"{name!r}, {_described(found[name])} saved and {_described(value)} here"
        for name, value in expected.items()
        if name in found and _described(found[name]) != _described(value)
    ]
    lines = [
        _line("The checkpoint lacks", _with_near(missing, unexpected)),
        _line("The module has no", _with_near(unexpected, missing)),
        _line("Of another shape are", shapes),
    ]
    return "\n".join(filter(None, lines))


def _line(title: str, items: list[str]) -> str:
    if not items:
        return ""
    more = ""
    if len(items) > _MAX_SHOWN:
        more = f"; and {len(items) - _MAX_SHOWN} more"
    return f"{title} {'; '.join(items[:_MAX_SHOWN])}{more}."


def _with_near(names: list[str], others: list[str]) -> list[str]:
    """The names, those that are shown each with the nearest of the others."""
    shown = list(map(repr, names))
    for index, name in enumerate(names[:_MAX_SHOWN]):
        for near in near_names(name, others, count=1):
            shown[index] += f" (is it {near!r}?)"
    return shown


def _described(value: object) -> str:
    if not hasattr(value, "shape"):
        return type(value).__name__
    return str(tuple(value.shape))
