"""A context in which marks are followed from operation to operation, while these run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from core import ModuleError
from core_parallel.following import rules
from core_parallel.following.marks import Mixed, mark_of, put
from core_parallel.modules import own_draws

_TO_NUMBERS = ("_local_scalar_dense", "equal", "is_nonzero")


class Following(TorchDispatchMode):
    """Operations run as without it, once; their results are marked.

    Attributes:
        depth: number of layers under way that know by themselves how their results lie.
        why: what stands behind an error's first sentence.
    """

    def __init__(self, why: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.depth, self.why = 0, why

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operation's result."""
        kwargs = kwargs or {}
        # in backward gradients are what is computed, and autograd knows the way back
        if self.depth or torch._C._current_graph_task_id() != -1:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in _TO_NUMBERS:
            self._refuse_numbers(args)
        result = func(*args, **kwargs)
        results = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
        mark = rules.result_of(func, args, kwargs, results)
        if mark is None and torch.Tag.nondeterministic_seeded in func.tags and own_draws.is_open():
            mark = Mixed(name, draws=True)
        put(results, mark)
        return result

    def _refuse_numbers(self, given: Any) -> None:
        for one in tree_leaves(given):
            if mark_of(one) is not None:
                raise ModuleError(
                    "A number was made of a tensor of which each rank has its own part, or values "
                    f"of its own: it is another one on each rank. {self.why}"
                )
