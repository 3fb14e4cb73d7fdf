"""Gradients between ranks, by Horovod's DistributedOptimizer.

Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", 2018.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from core import ConfigurationError, ModuleError
from core_horovod import library

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from core_horovod.operations import Operations
    from core_horovod.options import HorovodOptions

_NEVER = 2**62
"""So many backwards don't come: Horovod's hooks leave gradients alone."""


@dataclass(eq=False)
class _Module:
    """One module that was set up: its parameters by their names in Horovod, and what exchanges
    their gradients.
    """

    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    optimizer: Any = None
    num_passes: int = 0
    stays_local: bool = False
    passes_per_step: int = 0
    added_up: list[tuple[str, weakref.ref[Tensor]]] = field(default_factory=list)

    def set_passes(self, number: int) -> None:
        """Make Horovod's hooks exchange a gradient after so many backwards."""
        if self.passes_per_step != number:
            self.optimizer.set_backward_passes_per_step(number)
            self.passes_per_step = number

    @property
    def is_touched(self) -> bool:
        """True if the last backwards have brought gradients that aren't exchanged."""
        return bool(self.optimizer is not None and self.optimizer._handles)

    def retire(self) -> None:
        """Disable the hooks, and release the parameters."""
        if self.optimizer is not None:
            self.optimizer.set_backward_passes_per_step(_NEVER)
            self.optimizer._grad_accs.clear()  # hooks go with the nodes of the graph that have them
            self.optimizer._handles.clear()
            self.optimizer = None
        self.passes_per_step = 0


class Exchange:
    """The gradients of all modules of a run.

    Horovod's DistributedOptimizer is made over parameters, and never makes a step: that is left to
    the user's own optimizer, which keeps its class, its state, its hooks and its schedulers. Two
    things are put right here. Horovod takes a gradient that no rank has for zero, and lets it decay
    weights and move momenta; and it waits for ever where ranks have gradients of different
    parameters that it groups. So ranks say first what they have.
    """

    def __init__(self, options: HorovodOptions, operations: Operations) -> None:
        self._options, self._operations = options, operations
        self._modules: list[_Module] = []
        self._hvd = library.load()

    def fit(self, modules: Iterable[nn.Module]) -> None:
        """All ranks, before a backward. Follow changes of the modules, and of which parameters
        require gradients.
        """
        claimed: set[Tensor] = set()
        for number, module in enumerate(modules):
            if number == len(self._modules):
                self._modules.append(_Module())
            # A parameter that several modules share is exchanged once.
            wanted = {
                f"{number}.{name}": own
                for name, own in module.named_parameters()
                if own.requires_grad and own not in claimed
            }
            claimed.update(wanted.values())
            one = self._modules[number]
            if list(map(id, one.parameters.values())) != list(map(id, wanted.values())):
                one.retire()
                one.parameters = wanted
                one.optimizer = self._make(wanted) if wanted else None

    def _make(self, parameters: dict[str, nn.Parameter]) -> Any:
        for name, own in parameters.items():
            if not own.is_contiguous():
                raise ConfigurationError(
                    "Horovod exchanges contiguous gradients only, and the parameter "
                    f"{name.partition('.')[2]!r} isn't contiguous, such as with "
                    "memory_format=torch.channels_last. Use .contiguous(), or strategy='ddp'."
                )
        options, hvd = self._options, self._hvd
        return hvd.DistributedOptimizer(
            torch.optim.SGD(parameters.values(), lr=0.0),
            named_parameters=list(parameters.items()),
            compression=getattr(hvd.Compression, options.compression),
            op=getattr(hvd, options.op),
            gradient_predivide_factor=options.gradient_predivide_factor,
            groups=options.groups,
            sparse_as_dense=options.sparse_as_dense,
        )

    def prepare(self) -> list[_Module]:
        """All ranks, before a backward. Returns the modules whose gradients this backward is to
        exchange.
        """
        due = []
        for one in self._modules:
            if one.optimizer is None:
                continue
            one.num_passes += 1
            is_due = (
                not one.stays_local and one.num_passes >= self._options.backward_passes_per_step
            )
            one.set_passes(1 if is_due else _NEVER)
            if is_due:
                self._refuse_second_sum(one)
                due.append(one)
        return due

    def _refuse_second_sum(self, one: _Module) -> None:
        """See that a backward doesn't add to sums over ranks, which would be added up again; means
        stay as they are.

        Raises:
            ConfigurationError: it does.
        """
        for name, added_up in one.added_up:
            own = one.parameters.get(name)
            if (
                own is not None
                and own.grad is not None
                and own.grad is added_up()
                and own.grad.count_nonzero()
            ):
                raise ConfigurationError(
                    f"op='Sum': the gradient of {name.partition('.')[2]!r} is a sum over ranks "
                    "already, and this backward adds to it. Leave earlier backwards of a step in "
                    "`no_backward_sync`, which accumulation of the Trainer does, or use "
                    "op='Average'."
                )
        one.added_up = []

    def set_local(self, index: int, stays_local: bool) -> bool:
        """Leave gradients of a module on their ranks, or don't. Returns what held before."""
        while len(self._modules) <= index:
            self._modules.append(_Module())
        before, self._modules[index].stays_local = self._modules[index].stays_local, stays_local
        return before

    def complete(self) -> None:
        """All ranks, before a step. Exchange what `backward_passes_per_step` has held back so
        far.
        """
        if self._options.backward_passes_per_step > 1:
            self.finish(
                [one for one in self._modules if one.optimizer is not None and one.num_passes]
            )

    def finish(self, due: list[_Module]) -> None:
        """All ranks, after a backward. Wait for the gradients of modules that it has touched on any
        rank.

        Raises:
            ModuleError: ranks have gradients of different parameters, in a case that Horovod would
                wait for in vain.
        """
        if not due:
            return
        here = [[own.grad is not None for own in one.parameters.values()] for one in due]
        sparse = [
            [own.grad is not None and own.grad.is_sparse for own in one.parameters.values()]
            for one in due
        ]
        facts = [one.is_touched for one in due] + [
            fact for facts in (*here, *sparse) for fact in facts
        ]
        votes = iter(
            self._operations.reduce(torch.tensor(facts, dtype=torch.int32), "sum").tolist()
        )
        touched = [next(votes) for _ in due]
        present = [[next(votes) for _ in facts] for facts in here]
        as_sparse = [[next(votes) for _ in facts] for facts in sparse]
        for one, ranks, have, have_sparse in zip(due, touched, present, as_sparse, strict=True):
            if ranks:
                self._refuse_difference(one, have, have_sparse)
                with library.naming_lost_ranks():
                    one.optimizer.synchronize()
                one.optimizer._synchronized = False  # it is never stepped
                one.num_passes = 0
                for own, number in zip(one.parameters.values(), have, strict=True):
                    if not number:
                        own.grad = None
                if self._options.op == "Sum":
                    grads = ((name, own.grad) for name, own in one.parameters.items())
                    one.added_up = [
                        (name, weakref.ref(grad)) for name, grad in grads if grad is not None
                    ]

    def _refuse_difference(self, one: _Module, have: list[int], have_sparse: list[int]) -> None:
        for name, number, num_sparse in zip(one.parameters, have, have_sparse, strict=True):
            is_sparse = num_sparse and not self._options.sparse_as_dense
            if 0 < number < self._operations.size and (self._options.groups or is_sparse):
                cure = "sparse_as_dense=True" if is_sparse else "groups=None"
                raise ModuleError(
                    f"{number} of {self._operations.size} ranks have a gradient of "
                    f"{name.partition('.')[2]!r}, and Horovod would wait for the others for ever. "
                    f"Let the loss depend on it on all ranks, or pass HorovodStrategy({cure})."
                )

    def forget(self) -> None:
        """Idempotent. Let go of all modules."""
        for one in self._modules:
            one.retire()
        self._modules = []
