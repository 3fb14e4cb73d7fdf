"""The values that a step logs on the rank of the last stage, microbatch by microbatch: one a name
for the batch.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from core import ModuleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

_ARGUMENTS = (
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "reduce_fx",
    "sync_dist",
    "batch_size",
    "add_dataloader_idx",
    "rank_zero_only",
)


Header: TypeAlias = tuple[str, dict[str, Any], str]
"""Name, options and dtype of a logged value."""


@dataclass(slots=True)
class _Logged:
    """One name: the options of its last call, and for each call its value, microbatch, and samples
    if it said so.
    """

    options: dict[str, Any]
    values: list[Any] = field(default_factory=list)
    microbatches: list[int] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)


class RecordedLogs:
    """Stands for a module's `log` while a schedule, or a part of the model runs.

    Attributes:
        is_open: the user's step runs for its loss, and its values count; they are muted where it
            runs for its arguments, and refused where a stage runs.
        microbatch: that runs.
    """

    def __init__(self) -> None:
        self.is_open, self.is_muted, self.microbatch = False, False, 0
        self._logged: dict[str, _Logged] = {}

    @contextmanager
    def instead_of(self, module: nn.Module) -> Iterator[None]:
        """A context in which what the module logs is recorded here."""
        if not callable(getattr(module, "log", None)):
            yield
            return
        own = vars(module).get("log")
        vars(module)["log"] = self.log
        try:
            yield
        finally:
            vars(module).pop("log")
            if own is not None:
                vars(module)["log"] = own

    def log(self, name: str, value: Any = None, *given: Any, **options: Any) -> None:
        """Record a value; the arguments are those of `Module.log`.

        Raises:
            ModuleError: a part logs it, or it isn't a number.
        """
        if self.is_muted:
            return
        if not self.is_open:
            raise ModuleError(
                f"self.log({name!r}) was called by a part of the model, of which this rank "
                "computes its own alone. Return the value with the part's result, and log it in "
                "the step."
            )
        if not isinstance(value, Tensor | int | float):
            raise ModuleError(
                f"self.log({name!r}) got a {type(value).__name__}; with a schedule expected a "
                "number, or a tensor with one element, whose values are brought to all ranks of "
                "the pipeline. Log what it computes, or leave schedule out."
            )
        options |= dict(zip(_ARGUMENTS, given, strict=False))
        size = options.pop("batch_size", None)
        logged = self._logged.setdefault(name, _Logged(options))
        logged.options = options
        if isinstance(value, Tensor):
            value = value.detach()
        logged.values.append(value)
        logged.microbatches.append(self.microbatch)
        if size is not None:
            logged.sizes.append(float(size))

    def header(self) -> list[Header]:
        """The names, options and dtypes of the values, which nobody has to read for that."""
        found: list[Header] = []
        for name, logged in self._logged.items():
            options, first = dict(logged.options), logged.values[0]
            if logged.sizes:
                options["batch_size"] = sum(logged.sizes)
            found.append((name, options, str(getattr(first, "dtype", "float"))))
        return found

    def values(self, weights: Sequence[float], like: Tensor) -> list[Tensor]:
        """One value for each name.

        Args:
            weights: of the microbatches. What one without weight has logged, perhaps NaN, doesn't
                count.
            like: has the device and the dtype that the values are to have.
        """
        return [_reduced(logged, weights, like) for logged in self._logged.values()]


def replay(module: nn.Module, header: Sequence[Header], values: Sequence[Tensor]) -> None:
    """All ranks of the pipeline. Log what the last stage has recorded."""
    for (name, options, kind), value in zip(header, values, strict=True):
        module.log(name, _as_logged(value, kind), **options)  # type: ignore[operator]  # a method of core's Module


def _as_logged(value: Tensor, kind: str) -> Any:
    if kind.startswith("torch."):
        dtype = getattr(torch, kind.removeprefix("torch."))
        # A mean of whole numbers isn't one.
        return value.to(dtype) if dtype.is_floating_point else value
    return float(value)


def _reduced(logged: _Logged, weights: Sequence[float], like: Tensor) -> Tensor:
    own = [weights[index] for index in logged.microbatches]
    counted = [position for position, weight in enumerate(own) if weight] or list(range(len(own)))
    values = torch.stack(
        [torch.as_tensor(logged.values[position]).to(like).reshape(()) for position in counted]
    )
    reduce_fx = logged.options.get("reduce_fx", "mean")
    kind = getattr(reduce_fx, "__name__", reduce_fx)
    if kind in ("min", "amin", "max", "amax", "sum"):
        reduced: Tensor = getattr(values, kind)()
        return reduced
    shares = own
    if len(logged.sizes) == len(own):
        shares = logged.sizes
    of_counted = [shares[position] for position in counted]
    return torch.dot(values, torch.tensor(of_counted).to(like)) / sum(of_counted)
