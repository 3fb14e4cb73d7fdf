"""The weights of a model as a stream, with the names and tensors that the files of
`from_pretrained` have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from core import Fabric
from core.fabric import WeightDescription
from core_transformers.model_state import ModelState, agreeing
from core_transformers.pretrained import described_files, to_write

if TYPE_CHECKING:
    import torch
    from torch import nn

    from core import Trainer


class PretrainedWeights:
    """The weights of a model, as `from_pretrained` reads them: for an engine that serves it while
    it trains.

    A `core.fabric.WeightStream` whose tensors are converted as `save_pretrained` does, such as
    experts one by one; of a model around which peft has put adapters, these alone. One unit is held
    at a time.

    Attributes:
        version: see `core.fabric.WeightStream`.
    """

    def __init__(
        self, host: Fabric | Trainer, module: nn.Module, *, dtype: torch.dtype | None = None
    ) -> None:
        """All ranks.

        Args:
            host: the Fabric or Trainer that has set it up.
            module: as for `load_pretrained`.
            dtype: of floating-point tensors, but for those kept in float32; None keeps each one's.

        Raises:
            ModuleError: there is no such model.
        """
        opened = ModelState(host, module)
        with agreeing(host):
            names, self._units, self._convert = to_write(opened, dtype)
        leaves = {name: opened.state[own] for name, own in names.items()}
        in_order = {names[name]: name for unit in self._units for name in unit}
        if isinstance(host, Fabric):
            self._stream = host.weights(module, names=in_order)
        else:
            self._stream = host.weights(names=in_order)
        self._described = {
            unit[0]: described_files(self._convert, leaves, [unit]) for unit in self._units
        }

    @property
    def version(self) -> int:
        """See `core.fabric.WeightStream`."""
        return self._stream.version

    def metadata(self) -> list[WeightDescription]:
        """Names, dtypes and whole shapes, in the order of the iteration. No communication."""
        found = (pair for described in self._described.values() for pair in described.items())
        return [
            WeightDescription(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in found
        ]

    def held_names(self) -> list[str] | None:
        """The names of tensors of which this rank has a part; None if it has one of each."""
        held = self._stream.held_names()
        if held is None:
            return None
        return [
            name for unit in self._units if {*unit} & {*held} for name in self._described[unit[0]]
        ]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All ranks. Yield (name, whole tensor), one after the other."""
        tensors = iter(self._stream)
        for unit in self._units:
            made = self._convert(dict(next(tensors) for _ in unit))
            for name in list(made):
                yield name, made.pop(name)
