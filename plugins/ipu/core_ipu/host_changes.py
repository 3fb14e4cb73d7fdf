"""Changes on the host between two calls of a training program, which has the weights on the
device.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch

from core import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn


class HostChanges:
    """Looks at parameters and buffers of the host without touching them.

    PopTorch copies all weights to the host when an attribute of a parameter is read in the usual
    way, so that a look at each step has to go past that.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = dict(module.named_parameters())
        buffers = dict(module.named_buffers())
        self._parameters = list(parameters.values())
        self._tensors = [*parameters.values(), *buffers.values()]
        self._names = [*parameters, *buffers]
        self._flags = self._requires_grad()
        self.note()

    def note(self) -> None:
        """The host's values are known as they are now."""
        self._versions = self._versions_now()

    @property
    def has_other_flags(self) -> bool:
        """True if other parameters require gradients than when this was made."""
        return self._requires_grad() != self._flags

    def find_change(self) -> str | None:
        """The name of a tensor whose values were changed since `note`; None if none was."""
        now = self._versions_now()
        if now == self._versions:
            return None
        return next(
            name
            for name, old, new in zip(self._names, self._versions, now, strict=True)
            if old != new
        )

    def refuse_other_flags(self) -> None:
        """The program goes on with the gradients that it was compiled with.

        Raises:
            ConfigurationError: other parameters require gradients now.
        """
        now = self._requires_grad()
        if now == self._flags:
            return
        pairs = zip(self._names, self._flags, now, strict=False)
        name, verb = next(
            (name, "unfrozen" if new else "frozen") for name, old, new in pairs if old != new
        )
        raise ConfigurationError(
            f"Parameter {name!r} was {verb} between two steps, and a compiled program goes on as "
            "it was compiled. Do it in on_train_epoch_start: then the program is compiled anew."
        )

    def _requires_grad(self) -> list[bool]:
        return _read(self._parameters, "requires_grad")

    def _versions_now(self) -> list[int]:
        return _read(self._tensors, "_version")


def _read(tensors: Sequence[torch.Tensor], attribute: str) -> list[Any]:
    with torch._C.DisableTorchFunctionSubclass():
        return list(map(object.__getattribute__, tensors, repeat(attribute)))
