"""The record that a strategy keeps of a module that it has set up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core.session import module_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


@dataclass(slots=True)
class ModuleHandle:
    """A module that was set up.

    Attributes:
        module: the user's own.
        wrapped: what `setup_module` returned; may be the same.
        original_names: name of each parameter by `id`, as it was before anything was wrapped or
            replaced.
        compiler: what the user's methods go through before they are called, such as
            `torch.compile`.
    """

    module: nn.Module
    wrapped: nn.Module
    original_names: dict[int, str]
    compiler: Callable[[Any], Any] | None = None
    _compiled: dict[str, Callable[..., Any]] = field(default_factory=dict)

    @property
    def parameter_names(self) -> dict[int, str]:
        """Name of each parameter by `id`. Converting may have replaced some, so both identities are
        known.
        """
        return self.original_names | module_tree.parameter_names(self.module)

    def user_callable(self, name: str) -> Callable[..., Any]:
        """The user's own method, or for `"forward"` the user's module, compiled if that was asked
        for.
        """
        call: Callable[..., Any] = self.module
        if name != "forward":
            call = getattr(self.module, name)
        if self.compiler is None:
            return call
        if name not in self._compiled:
            self._compiled[name] = self.compiler(call)
        return self._compiled[name]
