"""A module and its optimizer in the hands of one of Colossal-AI's plugins that cut state over the
ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core import Capability, CheckpointError, ConfigurationError, UnsupportedError
from core.strategies import MethodRouter
from core_colossalai import library

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn
    from torch.optim import Optimizer

_KWARGS = frozenset({"inputs", "retain_graph"})


class Engine:
    """The module and optimizer that `Booster.boost` has made, and the calls that Colossal-AI
    documents for them.

    Attributes:
        booster: Colossal-AI's.
        module: the user's own.
        optimizer: the user's own, which Colossal-AI steps.
        given_groups: parameters of the optimizer, group by group, when it was given.
        wrapped: Colossal-AI's model.
        boosted: Colossal-AI's optimizer around the user's.
    """

    routes = True
    """True if methods other than `forward` can run through the model; not where Colossal-AI asks
    for its class.
    """

    def __init__(self, booster: Any, module: nn.Module, optimizer: Optimizer) -> None:
        """All ranks. Boost, which converts the module and cuts what the plugin cuts."""
        self.booster = booster
        self.module = module
        self.optimizer = optimizer
        self.given_groups = [list(group["params"]) for group in optimizer.param_groups]
        self.router = MethodRouter(module) if self.routes else None
        boosted_module: nn.Module = self.router if self.router is not None else module
        self.wrapped, self.boosted = library.boost(booster, boosted_module, optimizer)
        if self.boosted.unwrap() is not optimizer:
            raise ConfigurationError(
                f"Colossal-AI puts another optimizer in the place of {type(optimizer).__name__}, "
                "which no scheduler reaches. Use one of torch.optim, or the distributed one of "
                "Colossal-AI's own."
            )
        # Gradients are Colossal-AI's: those of the user's optimizer are of parts of the parameters.
        vars(optimizer)["zero_grad"] = self.boosted.zero_grad

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """All ranks. Compute and exchange gradients.

        Raises:
            UnsupportedError: an argument of `Tensor.backward` that Colossal-AI doesn't take.
        """
        if unknown := sorted(kwargs.keys() - _KWARGS):
            raise UnsupportedError(
                f"backward({unknown[0]}=...): Colossal-AI's optimizers take only inputs=... and "
                "retain_graph=...."
            )
        if kwargs:
            self.boosted.backward(loss, **kwargs)
        else:
            self.booster.backward(loss, self.boosted)

    def scale(self, factor: float) -> None:
        """All ranks. Refused here, as a strategy that has this engine declares.

        Raises:
            UnsupportedError: with the plugins that can.
        """
        raise UnsupportedError(
            "Colossal-AI keeps these gradients where core can't multiply them: use "
            "plugin='torch_ddp' or 'low_level_zero' where losses have weights.",
            capability=Capability.WEIGHTED_LOSSES,
        )

    def clip(self, max_norm: float) -> Tensor:
        """All ranks. Refused here: only what knows its gradients can say their norm.

        Raises:
            UnsupportedError: with the option that clips.
        """
        raise UnsupportedError(
            "Colossal-AI clips inside its own step: pass max_norm=... to the strategy, and leave "
            "gradient_clip_val out."
        )

    def step(self) -> bool:
        """All ranks. Step the optimizer; whether parameters were updated, which an overflow in fp16
        prevents.
        """
        applied: list[bool] = []
        handle = self.optimizer.register_step_post_hook(lambda *_: applied.append(True))
        try:
            self.boosted.step()
        finally:
            handle.remove()
        return bool(applied)

    def module_values(self) -> dict[Tensor, Tensor]:
        """All ranks. Whole values, in the user's format, of parameters that are computed with in
        another one.

        Raises:
            CheckpointError: they can't be had by the user's names.
        """
        raise CheckpointError(_OWN_FORM)

    def load_values(self, values: Mapping[Tensor, Tensor]) -> None:
        """All ranks. Restore values of parameters.

        Raises:
            CheckpointError: they can't be put back by the user's names.
        """
        raise CheckpointError(_OWN_FORM)

    def close(self, *, is_whole: bool) -> None:
        """Remove what was left on the optimizer. Idempotent."""
        vars(self.optimizer).pop("zero_grad", None)


_OWN_FORM = (
    "What this plugin cuts can be saved and loaded by Colossal-AI itself only: use "
    "ColossalAIStrategy(..., colossalai_checkpoint='native'), or pass enable_checkpointing=False "
    "to the Trainer."
)


class ForwardEngine(Engine):
    """An engine whose Shardformer looks at the model's class, in hybrid and in Gemini: called by
    its forward only.
    """

    routes = False
