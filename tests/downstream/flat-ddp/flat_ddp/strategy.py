"""core-ddp with another wrapper."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any

from core import ConfigurationError
from core_ddp import DDPStrategy
from flat_ddp.wrapper import FlatDDP

if TYPE_CHECKING:
    from torch import nn


class FlatDDPStrategy(DDPStrategy):
    """Data parallelism whose gradients travel in one message, after backward.

    For models of many small parameters on a network where each message is dear.
    """

    def __init__(self, *, start_method: str = "subprocess", **parts: Any) -> None:
        """Take the options of every parallel strategy; those of DistributedDataParallel mean nothing here.

        Args:
            start_method: who makes the processes if no cluster has.
            parts: of `core.strategies.ParallelStrategy`.

        Raises:
            ConfigurationError: an option of DistributedDataParallel.
        """
        super().__init__(start_method=start_method, **parts)
        if self.ddp_options:
            raise ConfigurationError(
                f"FlatDDPStrategy has no option {min(self.ddp_options)!r}: its wrapper isn't torch's "
                "DistributedDataParallel. Leave the option out, or use strategy='ddp'."
            )

    def configure_ddp(self) -> None:
        """All ranks. Give everybody the weights of rank 0, and wrap."""
        for tensor in chain(self.model.parameters(), self.model.buffers()):
            tensor.data.copy_(self.broadcast(tensor.data))
        self.model = FlatDDP(self.model, self.reduce)

    def no_backward_sync(self, module: nn.Module, enabled: bool = True) -> AbstractContextManager[Any]:
        """All ranks. A context in which gradients stay local."""
        wrapper = self.session.handle_of(module).wrapped
        return wrapper.no_sync() if enabled and isinstance(wrapper, FlatDDP) else nullcontext()

    def release(self) -> None:
        """All ranks; idempotent. The user's parameters lose their hooks."""
        for handle in self.session.handles:
            if isinstance(handle.wrapped, FlatDDP):
                handle.wrapped.remove()
        super().release()
