"""The trace of a model: Python runs once, when the model is compiled, and never again ([features],
"Options").
"""

import torch
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from poptorch.device import Error

_traces = []  # of each, the losses that were marked


def identity_loss(x, reduction):
    """[features] "poptorch.identity_loss": marks the final loss, and reduces it."""
    assert reduction in ("sum", "mean", "none"), "Unsupported reduction type!"
    marked = x if reduction == "none" else x.sum() if reduction == "sum" else x.mean()
    if _traces:
        _traces[-1].append(marked)
    return marked


class Program:
    """A traced model: a function of weights and tensors that returns tensors, the loss first if it
    trains.

    Attributes:
        structure: what the model has returned, rebuilt around the tensors of each run.
    """

    def __init__(self, model, weights, args, *, training):
        leaves, spec = pytree.tree_flatten(args)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

        def run(weights, tensors):
            losses = []
            _traces.append(losses)
            try:
                rest = iter(tensors)
                filled = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
                result = functional_call(model, weights, tuple(pytree.tree_unflatten(filled, spec)))
            finally:
                _traces.pop()
            outputs, self.structure = pytree.tree_flatten(result)
            self.constants = [
                None if isinstance(output, torch.Tensor) else output for output in outputs
            ]
            outputs = [output for output in outputs if isinstance(output, torch.Tensor)]
            self._has_marked_loss = bool(losses)
            return [*(losses[-1:] or outputs[:1]), *outputs] if training else outputs

        with torch.inference_mode(False), torch.enable_grad():
            self._graph = make_fx(run)(weights, tensors)
        if training and not self._has_marked_loss:
            # Left out by the simulator: a loss of torch's own, which needs no mark ([from torch],
            # "Multiple losses").
            raise Error("Couldn't find the loss: mark the final one with poptorch.identity_loss.")

    @property
    def mutates_buffers(self):
        """True if a run writes into a buffer."""
        return any(
            (
                getattr(node.target, "_schema", None) is not None
                and node.target._schema.is_mutable
                and not node.users
            )
            or node.target is torch.ops.aten._native_batch_norm_legit.default
            or node.target is torch.ops.aten.native_batch_norm.default
            for node in self._graph.graph.nodes
            if node.op == "call_function"
        )

    def __call__(self, weights, tensors):
        return self._graph(weights, tensors)

    def rebuild(self, tensors):
        rest = iter(tensors)
        leaves = [next(rest) if constant is None else constant for constant in self.constants]
        return pytree.tree_unflatten(leaves, self.structure)
