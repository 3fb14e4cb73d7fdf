"""Errors of torch about a step, in words that say what to write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract import ModuleError

if TYPE_CHECKING:
    from torch import nn


def explain_torch(
    error: RuntimeError, module: nn.Module, *, trains: bool
) -> RuntimeError | ModuleError:
    """An error of ours in place of one whose advice leads astray, or that names no cause; else the
    same.
    """
    text, name = str(error), type(module).__name__
    if "inference tensor" in text.lower():
        return ModuleError(
            "The module keeps a tensor that it has made under torch.inference_mode, such as a "
            f"table that its first forward computes, and training can't use it ({error}). "
            "Pass inference_mode=False to the Trainer that evaluates before."
        )
    if (
        "backward through the graph a second time" in text
        and trains
        and getattr(module, "automatic_optimization", True)
    ):
        return ModuleError(
            "A graph went through backward twice. The loop calls backward for the loss that "
            f"{name}.training_step returns, and steps the optimizer. If the step or a hook calls "
            "loss.backward() too, write one of two: leave it out, and step() and zero_grad(); or "
            "set self.automatic_optimization = False, and call self.manual_backward(loss), and "
            "both of self.optimizers(). If none does, the loss depends on an earlier batch, as by "
            "a hidden state: keep its detach(). (With retain_graph=True each gradient would count "
            "twice.)"
        )
    return error
