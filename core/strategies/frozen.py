"""Parameters that were frozen when a module was wrapped, and that its wrapper doesn't know to be trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor
    from torch.utils.hooks import RemovableHandle


class FrozenParameters:
    """Makes it an error that a parameter gets gradients which was frozen when it was set up; costs nothing a step.

    For a strategy whose wrapper or engine looks at `requires_grad` once. Such a gradient would stay on its rank, and
    the ranks' weights would drift apart without a word.

    Args:
        why: what becomes of such gradients, and what to do instead: the end of the error's message.
    """

    def __init__(self, why: str) -> None:
        self._why = why
        self._known: dict[Tensor, tuple[str, RemovableHandle]] = {}

    def __bool__(self) -> bool:
        """True if any parameter was frozen."""
        return bool(self._known)

    def watch(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """WatchdogOptions parameters that have just been set up, perhaps not for the first time."""
        for name, parameter in named:
            if known := self._known.pop(parameter, None):
                known[1].remove()
            if not parameter.requires_grad:
                self._known[parameter] = name, _on_gradient(parameter, self._refusal(name))

    def unfrozen(self) -> dict[Tensor, str]:
        """The parameters that require gradients by now, with their names."""
        return {parameter: name for parameter, (name, _) in self._known.items() if parameter.requires_grad}

    def forget(self) -> None:
        """Stop watching. Idempotent."""
        for _, handle in self._known.values():
            handle.remove()
        self._known = {}

    def _refusal(self, name: str) -> Callable[[Tensor], None]:
        message = f"The parameter {name!r} gets gradients, and was frozen when it was set up: {self._why}"

        def refuse(parameter: Tensor) -> None:
            raise ConfigurationError(message)

        return refuse


def _on_gradient(parameter: Tensor, refuse: Callable[[Tensor], None]) -> Any:
    """A hook for the first gradient of a frozen parameter; torch takes hooks of those that aren't frozen only."""
    parameter.requires_grad_(True)
    try:
        return parameter.register_post_accumulate_grad_hook(refuse)
    finally:
        parameter.requires_grad_(False)
