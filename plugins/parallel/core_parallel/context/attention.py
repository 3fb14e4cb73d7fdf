"""Attention of a part of the sequence, which sees the whole of it, and losses, which are those of
the whole.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from torch.overrides import TorchFunctionMode

from core import ModuleError
from core_parallel.communication import collectives
from core_parallel.context import losses_of_positions, masks
from core_parallel.following.marks import Mark, Mixed, PartAlong, mark_of, put
from core_parallel.following.mode import is_followed, set_aside
from core_parallel.following.rules import of_attention
from core_parallel.modules import losses
from core_parallel.modules.parted_tensor import local_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Attention = Literal["ulysses", "gather"]
AXIS = "context"
"""Of the mesh; along it each rank has a part of the sequence."""

_ATTENTION = functional.scaled_dot_product_attention
_DRAWS = frozenset(
    (
        torch.rand,
        torch.randn,
        torch.randint,
        torch.bernoulli,
        Tensor.uniform_,
        Tensor.bernoulli_,
        Tensor.random_,
    )
)


class Caught(TorchFunctionMode):
    """Attention that sees the whole sequence, and losses of the whole sequence.

    It is a mode, for functions under any name, and stands in the place of torch's functions as
    well: a mode sees nothing of what backward computes again.

    Args:
        group: of the ranks.
        attention: by which exchange attention sees the whole.

    Attributes:
        length: of this rank's part.
        has_losses: a loss was computed since a context was entered.
    """

    def __init__(self, group: Any, attention: Attention) -> None:
        super().__init__()
        self._group, self._attention = group, attention
        self.length, self._learns = 0, False
        self._is_attending = self._is_masked = False
        self.has_losses, self._is_losing = False, False
        self._answers: dict[str, Any] = {"scaled_dot_product_attention": self.attend}
        for one in losses.BY_POSITION:
            # torch hands it on as the function that was called
            self._answers[one.__name__] = update_wrapper(partial(self._lose, one), one)
        self._is_compiled = False

    def leave_out_of_graphs(self) -> None:
        """Attend in eager mode between graphs, by one function for which they are compiled: a mode
        would be traced with all of the model.
        """
        self._is_compiled = True
        self._answers = {"scaled_dot_product_attention": torch.compiler.disable(self.attend)}

    @contextmanager
    def of(self, length: int) -> Iterator[None]:
        """A context in which attention and losses are those of the whole.

        Args:
            length: of this rank's part.
        """
        self.length, self._learns, self.has_losses = length, torch.is_grad_enabled(), False
        replaced = {name: getattr(functional, name) for name in self._answers}
        vars(functional).update(self._answers)
        try:
            with nullcontext() if self._is_compiled else self:
                yield
        finally:
            vars(functional).update(replaced)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result, with attention in our way."""
        kwargs = kwargs or {}
        if func is _ATTENTION and not self._is_attending:
            return self.attend(*args, **kwargs)
        if func in losses.BY_POSITION and not self._is_losing:
            return self._lose(func, *args, **kwargs)
        result = func(*args, **kwargs)
        # whether a layer is dropped, not which place
        if func in _DRAWS and result.numel() == 1 and not result.is_meta:
            dist.broadcast(result, group=self._group, group_src=0)
        return result

    def attend(self, query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The result of attention to the whole sequence; on meta, where only shapes are asked for,
        to the own part.
        """
        if query.is_meta or self._is_attending:
            return _ATTENTION(query, *args, **kwargs)
        self._is_attending = True
        replaced, functional.scaled_dot_product_attention = (
            functional.scaled_dot_product_attention,
            _ATTENTION,
        )
        try:
            with set_aside():
                answer = self._attend(query, *args, **kwargs)
        finally:
            self._is_attending, functional.scaled_dot_product_attention = False, replaced
        given = [one for one in (query, *args, *kwargs.values()) if isinstance(one, Tensor)]
        if is_followed("tensor"):
            put([answer], "tensor", of_attention("tensor", given, answer))  # heads stay in place
        if is_followed(AXIS):
            mark = _of_positions(given[:3], answer)
            is_masked = len(given) > 3
            put([answer], AXIS, mark if is_masked == self._is_masked else Mixed("attention"))
        return answer

    def _lose(self, loss: Any, *args: Any, **kwargs: Any) -> Tensor:
        """All ranks of the group. The loss of all positions, of which each rank gives its own."""
        given = losses.bound(loss, args, kwargs)
        if self._is_losing or given["input"].is_meta:
            return loss(*args, **kwargs)  # type: ignore[no-any-return]
        self._is_losing = self.has_losses = True  # one of these functions may call another
        try:
            found = losses_of_positions.of_all(loss, given, self._group)
        finally:
            self._is_losing = False
        if is_followed(AXIS) and mark_of(local_of(given["input"]), AXIS) is None:
            put([found], AXIS, Mixed(f"{loss.__name__} of what all ranks have whole"))
        return found

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **others: Any,
    ) -> Tensor:
        if query.shape[-2] != self.length or key.shape[-2] != self.length:
            raise ModuleError(
                f"Attention between {query.shape[-2]} and {key.shape[-2]} positions, where this "
                f"rank has {self.length} of the sequence under context=: only attention of the "
                "sequence to itself can be done in parts."
            )
        if self._learns and not torch.is_grad_enabled():
            raise ModuleError(
                "Attention ran without gradients inside of a call that has them: computed again in "
                "backward, as with checkpoint(use_reentrant=True), it would see only this rank's "
                "part of the sequence under context=. Checkpoint by use_reentrant=False, or by "
                "activation_checkpointing='units'."
            )
        mask = attn_mask
        if mask is not None:
            mask = masks.of_whole_keys(mask, self.length, self._group)
        options = {"dropout_p": dropout_p, "is_causal": is_causal, **others}
        self._is_masked = mask is not None
        if self._attention == "ulysses":
            return self._by_heads(query, key, value, mask, options)
        return self._by_keys(query, key, value, mask, options)

    def _by_heads(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        options: dict[str, Any],
    ) -> Tensor:
        size = self._group.size()
        for name, one in {"query": query, "key": key}.items():
            if one.ndim < 3 or one.shape[-3] % size:
                raise ModuleError(
                    f"The {name} of attention has the shape {tuple(one.shape)}, and context={size} "
                    "doesn't divide its heads (the third dim from the end). Use "
                    "context_attention='gather'."
                )
        if mask is not None:
            mask = masks.of_own_heads(mask, query.shape[-3], self.length, self._group)
        whole = [collectives.swap(one, -3, -2, self._group) for one in (query, key, value)]
        answer = _ATTENTION(whole[0], whole[1], whole[2], attn_mask=mask, **options)
        given = whole if mask is None else [*whole, mask]
        put([answer], AXIS, of_attention(AXIS, given, answer))
        return collectives.swap(answer, -2, -3, self._group)

    def _by_keys(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        options: dict[str, Any],
    ) -> Tensor:
        key, value = (collectives.gather(one, -2, self._group) for one in (key, value))
        if mask is not None:
            mask = masks.of_own_rows(mask, self.length, self._group)
        mark = _of_own_queries(query, key, value, mask) if is_followed(AXIS) else None
        if mask is None and options["is_causal"]:
            # without a mask in memory, where a kernel of the device knows this one
            end = (self._group.rank() + 1) * self.length
            key, value = key[..., :end, :], value[..., :end, :]
            mask, options = _causal(self.length, end, query.device), {**options, "is_causal": False}
        answer = _ATTENTION(query, key, value, attn_mask=mask, **options)
        put([answer], AXIS, mark)
        return answer


def _of_own_queries(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Mark:
    """How the result of attention lies that sees all keys from this rank's queries."""
    own, whole = [query], [key, value]
    if mask is not None:
        (whole if mask.shape[-2] == 1 else own).append(mask)
    marks = [mark_of(one, AXIS) for one in whole]
    if any(marks) or any(mark_of(one, AXIS) != PartAlong(one.ndim - 2) for one in own):
        return Mixed("attention")
    return PartAlong(query.ndim - 2)


def _of_positions(given: Sequence[Tensor], answer: Tensor) -> Mark:
    """How the result of attention lies along the sequence: as query, key and value must."""
    marks: set[Mark] = {mark_of(one, AXIS) for one in given}
    expected, found = PartAlong(given[0].ndim - 2), mark_of(answer, AXIS)
    if marks == {None}:
        return None
    if marks == {expected} == {found}:
        return expected
    return next((one for one in marks if isinstance(one, Mixed)), Mixed("attention"))


def _causal(rows: int, columns: int, device: torch.device) -> Tensor:
    """The causal mask of the last rows: without memory, as kernels know it, or whole if torch can't
    make that one.
    """
    try:
        return causal_lower_right(rows, columns)
    except RuntimeError:  # in a TorchDispatchMode, such as torch's counters of operations
        return torch.ones(rows, columns, dtype=torch.bool, device=device).tril(columns - rows)
