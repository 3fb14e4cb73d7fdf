"""One of the user's steps as a compiled program: traced once, then run on the device batch after
batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core import ConfigurationError, ModuleError, UnsupportedError
from core_ipu.recording import Logged, recorded, replay
from core_ipu.structure import put_together, take_apart, tensors_of_batch

if TYPE_CHECKING:
    from collections.abc import Callable


class Trace:
    """The findings of a trace, which a copy of the traced module shares with it.

    Attributes:
        output: what the user's step has returned, with slots for tensors.
        num_dims: number of dimensions of each of these tensors, for one micro-batch.
        calls: of `log`.
    """

    def __init__(self) -> None:
        self.output: Any = None
        self.num_dims: list[int] = []
        self.calls: list[Logged] = []


class Traced(nn.Module):
    """The module that PopTorch compiles: takes the tensors of a batch, returns those of the step
    and of its logs.
    """

    def __init__(
        self, module: nn.Module, name: str, structure: Any, numbers: tuple[int, ...], mark: Any
    ) -> None:
        """Keep what the trace needs.

        Args:
            module: the user's; its parameters are named `module.` and their own name.
            name: of the method.
            structure: of a batch, with slots.
            numbers: further arguments: those of the batch and of the loader.
            mark: PopTorch's `identity_loss`, which says where backward begins; None for inference.
        """
        super().__init__()
        self.module = module
        self.trace = Trace()
        self._name = name
        self._structure = structure
        self._mark = mark
        self._numbers = tuple(_Constant(number) for number in numbers)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the user's step on one micro-batch. Called once, while it is traced."""
        batch = put_together(self._structure, list(tensors))
        with recorded(self.module) as (calls, values):
            output = getattr(self.module, self._name)(batch, *self._numbers)
        if self._mark is not None:
            output = self._with_marked_loss(output)
        outputs, structure = take_apart(output)
        self.trace.output = structure
        self.trace.calls = calls
        self.trace.num_dims = [each.dim() for each in outputs]
        return (*outputs, *values)

    def _with_marked_loss(self, output: Any) -> Any:
        loss = output.get("loss") if isinstance(output, dict) else output
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ModuleError(
                f"training_step returned {_describe(output)}; a compiled step needs a scalar "
                "tensor, or a dict with one under 'loss', for every batch."
            )
        marked = self._mark(loss.reshape(()), reduction="none")
        return {**output, "loss": marked} if isinstance(output, dict) else marked


class CompiledProgram:
    """A step of the user's, compiled when it runs first.

    Attributes:
        executor: PopTorch's; None until the first call.
    """

    def __init__(
        self,
        module: nn.Module,
        name: str,
        *,
        make: Callable[[Traced], Any],
        num_joined: int,
        mark: Any = None,
    ) -> None:
        """Create a program, which is compiled when it first runs.

        Args:
            module: the user's.
            name: of its method.
            make: PopTorch's wrapper of the traced module.
            num_joined: number of micro-batches in one call.
            mark: see `Traced`.
        """
        self.executor: Any = None
        self._module, self._name, self._make, self._mark = module, name, make, mark
        self._num_joined = num_joined
        self._shapes: list[torch.Size] = []
        self._structure: Any = None
        self._trace = Trace()

    def prepare(self, batch: Any, numbers: tuple[int, ...]) -> list[torch.Tensor] | None:
        """The tensors for a call; None if the batch isn't like the compiled one, or can't be cut
        into micro-batches.
        """
        tensors, structure = tensors_of_batch(batch)
        shapes = [tensor.shape for tensor in tensors]
        if self.executor is None:
            if any(not shape or shape[0] % self._num_joined for shape in shapes):
                return None
            traced = Traced(self._module, self._name, structure, numbers, self._mark)
            self._shapes, self._structure, self._trace = shapes, structure, traced.trace
            self.executor = self._make(traced)
        return tensors if shapes == self._shapes and structure == self._structure else None

    def run(self, tensors: list[torch.Tensor]) -> Any:
        """Run on the device, log what the step logs, and return its output.

        Scalars of several micro-batches are averaged, and everything else is joined along the first
        dimension.
        """
        returned = list(self.executor(*tensors))
        number = len(self._trace.num_dims)
        outputs = [
            _scalar(value) if not dims else value
            for value, dims in zip(returned, self._trace.num_dims, strict=False)
        ]
        replay(self._module, self._trace.calls, returned[number:])
        return put_together(self._trace.output, outputs)

    def refuse(self, batch: Any) -> ConfigurationError:
        """The error for a training batch that `prepare` can't take."""
        tensors, structure = tensors_of_batch(batch)
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if self._shapes and structure != self._structure:
            return ConfigurationError(
                "A training batch has other containers, or other keys, or the same in another "
                f"order, than the one for which the program was compiled ({type(batch).__name__}). "
                "Let collate_fn make all of them alike."
            )
        if self._shapes:
            expected = f"the program was compiled for {[tuple(shape) for shape in self._shapes]}"
        else:
            expected = f"the first dimension of each must be a multiple of {self._num_joined}"
        return ConfigurationError(
            f"A training batch has tensors of shapes {shapes}, and {expected}. A compiled program "
            "takes batches of one size: use drop_last=True, and pad what differs."
        )

    def destroy(self) -> None:
        """Release the executable, and the devices that it is attached to."""
        if self.executor is not None:
            self.executor.destroy()
        self.executor = None


def _scalar(value: torch.Tensor) -> torch.Tensor:
    if value.is_floating_point():
        return value.mean()
    return value.reshape(()) if value.numel() == 1 else value


def _describe(output: Any) -> str:
    if isinstance(output, torch.Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    return (
        f"a dict with {sorted(map(str, output))}"
        if isinstance(output, dict)
        else f"{output!r}"[:80]
    )


class _Constant(int):
    """The number of a batch or loader in a trace, which would be that of all batches: any use is
    refused.
    """


def _refuse(self: _Constant, *others: Any) -> Any:
    raise UnsupportedError(
        "The step uses batch_idx or dataloader_idx, and it is a compiled program: they would be "
        "the first ones for all batches. Count in on_train_batch_end, or in a buffer of the module."
    )


for _operator in (
    "add",
    "and",
    "bool",
    "divmod",
    "eq",
    "float",
    "floordiv",
    "format",
    "ge",
    "gt",
    "index",
    "int",
    "le",
    "lt",
    "mod",
    "mul",
    "ne",
    "neg",
    "or",
    "pow",
    "radd",
    "rmod",
    "rmul",
    "rsub",
    "rtruediv",
    "str",
    "sub",
    "truediv",
):
    setattr(_Constant, f"__{_operator}__", _refuse)
