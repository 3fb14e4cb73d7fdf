"""A state loaded into a module, and a readable difference where its names or shapes aren't those of
the module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract.errors import CheckpointError
from core.session import module_tree
from core.text.spelling import near_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

_MAX_SHOWN = 8


def load(module: nn.Module, state: Mapping[str, object], *, strict: bool) -> None:
    """Load a state by canonical names.

    Raises:
        CheckpointError: it doesn't fit; names and shapes that differ are listed.
    """
    fitting = module_tree.from_canonical(module, module_tree.without_self_copies(module, state))
    try:
        # The user's own method need not know `strict`.
        module.load_state_dict(fitting, **({} if strict else {"strict": False}))
    except RuntimeError as error:
        report = describe_mismatch(module_tree.to_canonical(module.state_dict()), state) or str(
            error
        )
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
    lines = [
        _line(
            "The checkpoint lacks",
            (repr(name) + _near(name, unexpected) for name in missing),
            len(missing),
        ),
        _line(
            "The module has no",
            (repr(name) + _near(name, missing) for name in unexpected),
            len(unexpected),
        ),
    ]
    differing = [
        name for name in expected if name in found and _shape(expected[name]) != _shape(found[name])
    ]
    shapes = (
        f"{name!r}, {_described(found[name])} saved and {_described(expected[name])} here"
        for name in differing
    )
    lines.append(_line("Of another shape are", shapes, len(differing)))
    return "\n".join(line for line in lines if line)


def _line(title: str, items: Iterable[str], number: int) -> str:
    if not number:
        return ""
    shown = [item for _, item in zip(range(_MAX_SHOWN), items, strict=False)]
    more = f"; and {number - _MAX_SHOWN} more" if number > _MAX_SHOWN else ""
    return f"{title} {'; '.join(shown)}{more}."


def _near(name: str, others: list[str]) -> str:
    near = near_names(name, others, count=1)
    return f" (is it {near[0]!r}?)" if near else ""


def _described(value: object) -> str:
    return type(value).__name__ if _shape(value) is None else str(_shape(value))


def _shape(value: object) -> object:
    return tuple(value.shape) if hasattr(value, "shape") else None
