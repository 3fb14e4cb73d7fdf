"""The bytes that this rank hands to torch.distributed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_NAMESPACES = ("c10d", "_c10d_functional")
_WAITS = ("recv", "wait", "_wrap", "barrier", "monitored_barrier")


class Traffic(TorchDispatchMode):
    """Counts while it is entered. Slow, so that no timed step runs under it.

    Attributes:
        sent: bytes by the name of the collective, such as `"allreduce"`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types there, until 2.13 at least
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if func.namespace in _NAMESPACES and not name.startswith(_WAITS):
            size = sum(tensor.nbytes for tensor in _inputs(func, args, kwargs or {}))
            self.sent[name.strip("_")] += size
        return func(*args, **(kwargs or {}))


def _inputs(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors that are sent: the arguments called inputs, or else the first with tensors."""
    named = {
        argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)
    } | dict(kwargs)
    given = [value for name, value in named.items() if name.startswith("input")]
    for leaf in tree_leaves(given or next(iter(named.values()), [])):
        if isinstance(leaf, Tensor):
            yield leaf
