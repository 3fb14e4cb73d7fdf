"""The draws by which the submodules of a model get their first values, in the order of one
device.
"""

from __future__ import annotations

import inspect
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from core import ModuleError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator


class Draw(NamedTuple):
    """One submodule's draw.

    Attributes:
        part: the submodule, without what is in it.
        run: gives values to its tensors.
        is_second: by the model around it, after its own.
    """

    part: nn.Module
    run: Callable[[], Any]
    is_second: bool


def draws(
    module: nn.Module, parts: Container[nn.Module], unknown: list[nn.Module]
) -> Iterator[Draw]:
    """The draws of a module, children first: by `reset_parameters()`, and by the `_init_weights` of
    a model around it.

    Models of transformers have the latter, which draws once more for all that is in them.

    Args:
        module: the user's.
        parts: the submodules that need values.
        unknown: gets those that have neither; they draw NaN.
    """
    seen: list[nn.Module] = []
    known: set[nn.Module] = set()
    for part in children_first(module):
        if part in parts:
            seen.append(part)
            yield Draw(part, _reset_of(part) or partial(_fill_with_nan, part), False)
        if (initialize := _initializer_of(part)) is not None:
            inside = set(part.modules())
            # A model in a model has done it for its own.
            for child in [one for one in seen if one in inside and one not in known]:
                yield Draw(child, partial(initialize, child), True)
                known.add(child)
    unknown += [part for part in seen if _reset_of(part) is None and part not in known]


def children_first(module: nn.Module) -> Iterable[nn.Module]:
    """Every submodule, and the module, once each, also with several parents."""
    found: list[nn.Module] = []
    module.apply(found.append)
    return dict.fromkeys(found)


class Lacking(NamedTuple):
    """A tensor to which nothing gave values."""

    module: nn.Module
    name: str


def lacking(module: nn.Module, unknown: Iterable[nn.Module]) -> list[Lacking]:
    """The tensors of submodules to which nothing gives values, with a warning; see
    `refuse_lacking`.
    """
    names = {part: name for name, part in module.named_modules()}
    parts = [names[part] for part in unknown]
    if not parts:
        return []
    warnings.warn(
        f"{len(parts)} submodules were built on the meta device and have no reset_parameters() "
        "that could give them values: "
        f"{', '.join(name or type(module).__name__ for name in parts[:8])}. They hold NaN until a "
        "checkpoint is loaded, and no optimizer steps before.",
        stacklevel=3,
    )
    return [
        Lacking(module, name) for name in _tensors_of(module) if name.rpartition(".")[0] in parts
    ]


def refuse_lacking(found: list[Lacking]) -> None:
    """Refuse a step with tensors that were built on meta and hold NaN; those that don't any longer
    are let go.

    Args:
        found: see `lacking`.

    Raises:
        ModuleError: with the name of the first.
    """
    while found:
        module, name = found[0]
        tensor = _tensors_of(module).get(name)
        own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if own is not None and not own.is_meta and bool(own.isnan().any()):
            raise ModuleError(
                f"{name!r} of {type(module).__name__.removeprefix('FSDP')} was built on the meta "
                "device, and nothing has given it values: the module that has it has no "
                "reset_parameters(), and none around it an _init_weights(module). Add one, build "
                "it with values, or load a checkpoint before training."
            )
        found.pop(0)


def _tensors_of(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _reset_of(part: nn.Module) -> Callable[[], Any] | None:
    # the second is that of nn.MultiheadAttention
    for name in ("reset_parameters", "_reset_parameters"):
        if callable(method := getattr(part, name, None)):
            return method  # type: ignore[no-any-return]
    return None


def _initializer_of(part: nn.Module) -> Callable[[nn.Module], Any] | None:
    """A model's method for one submodule; others have that name for one without arguments."""
    method: Any = getattr(part, "_init_weights", None)
    if not callable(method):
        return None
    try:
        inspect.signature(method).bind(part)
    except TypeError:
        return None
    return method  # type: ignore[no-any-return]


def _fill_with_nan(part: nn.Module) -> None:
    with torch.no_grad():
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            tensor.fill_(float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0)
