"""Numbers that a step counts in attributes of its module: once a batch, though a schedule runs it
once a microbatch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn


class Counters:
    """The numbers among a module's attributes while one batch goes through a schedule.

    Args:
        module: the user's.

    Attributes:
        counted: those that the step for the last microbatch has changed, by name.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module, self._before = module, _numbers_of(module)
        self.counted: dict[str, int | float] = {}

    def begin(self) -> None:
        """Begin the step of a microbatch with the numbers that the batch began with."""
        attributes = vars(self._module)
        for name in _numbers_of(self._module).keys() - self._before.keys():
            del attributes[name]
        attributes |= self._before

    def note(self) -> None:
        """Note the numbers after a step that came to its end."""
        now = _numbers_of(self._module)
        self.counted = {
            name: value for name, value in now.items() if self._before.get(name) != value
        }

    def end(self, counted: Mapping[str, int | float]) -> None:
        """All ranks of the pipeline. Set the numbers that the rank of the last stage has
        counted.
        """
        self.begin()
        vars(self._module).update(counted)


def _numbers_of(module: nn.Module) -> dict[str, int | float]:
    return {name: value for name, value in vars(module).items() if type(value) in (int, float)}
