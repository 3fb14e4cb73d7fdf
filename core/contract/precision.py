"""The Precision contract: the number formats of parameters, activations, gradients and
reductions.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

ClippingAlgorithm = Literal["norm", "value"]
"""The argument `gradient_clip_algorithm`: by the norm of all gradients, or each by its value."""


@dataclass(frozen=True, slots=True)
class NumberFormats:
    """A precision as a description, which a strategy can translate for an engine of its own.

    None leaves a format as the user's module has it.

    Attributes:
        parameter: dtype in which parameters are stored.
        compute: dtype of matrix products and activations.
        reduce: dtype in which gradients are summed over ranks.
        buffer: dtype of floating-point buffers.
        scales_loss: whether fp16 needs the loss scaled.
    """

    parameter: torch.dtype | None = None
    compute: torch.dtype | None = None
    reduce: torch.dtype | None = None
    buffer: torch.dtype | None = None
    scales_loss: bool = False


class Precision:
    """Full precision as the module has it; the base of the others. Meant to be subclassed.

    A precision has two faces: `formats` describes it for a strategy that translates it for its own
    engine; the methods do the work for all others. The call sequence, all ranks:

    1. `connect(strategy)`, once, when the strategy is put together.
    2. `init_context()` around the construction of modules and tensors; `convert_module(module)`
       before wrapping.
    3. Each step: `forward_context(device_type)`, made once a stage and entered around the user's
       step; `backward(loss)`; `clip_gradients(...)`, unscaled before;
       `optimizer_step(optimizer, closure)`.
    4. `state_dict()` and `load_state_dict(state)`, for what must survive a restart (the loss
       scale).
    """

    name: str = "32-true"
    formats: NumberFormats = NumberFormats()
    trains: bool = True
    """False if it only evaluates and predicts: `fit`, and optimizers given to Fabric, are refused
    before any work.
    """

    def connect(self, strategy: Any) -> None:
        """Learn which strategy this precision serves. Nothing to do by default.

        Raises:
            ConfigurationError: the strategy's device can't compute in these formats.
        """

    def init_context(self) -> AbstractContextManager[object] | None:
        """A context in which new tensors get the parameter format; None if the default dtype
        serves. Re-enterable.
        """
        return None

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Cast parameters and buffers to the storage formats, in place."""
        return module

    def forward_context(self, device_type: str) -> AbstractContextManager[object] | None:
        """The context that user code runs in; None if none is needed, so that a step pays nothing.

        Asked once a stage; the same context is entered for every batch, one at a time.
        """
        return None

    def convert_input(self, data: Any) -> Any:
        """Cast one floating-point tensor of a batch to the compute format. Called for leaves, after
        the transfer.
        """
        return data

    @property
    def converts_input(self) -> bool:
        """True if `convert_input` does anything. If not, batches aren't walked through for it."""
        return type(self).convert_input is not Precision.convert_input

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients of `loss`, a scalar tensor; scale it first where the format needs
        that.
        """
        loss.backward(*args, **kwargs)

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Bring gradients back to their true size. At most once a step and optimizer; nothing to do
        by default.
        """

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any] | None = None
    ) -> bool:
        """Step the optimizer.

        Returns:
            Whether parameters were updated: False when a scaled step was skipped because gradients
            overflowed.
        """
        optimizer.step(closure)
        return True

    def state_dict(self) -> dict[str, Any]:
        """The state that must survive a restart, in plain types."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


@contextmanager
def join_contexts(
    outer: AbstractContextManager[object], inner: AbstractContextManager[object]
) -> Iterator[None]:
    """Two contexts in one. Neither is entered before it is."""
    with outer, inner:
        yield
