"""Attention of a part of the sequence, which sees the whole of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from core import ModuleError
from core_parallel.communication import collectives

if TYPE_CHECKING:
    from typing import Self

Attention = Literal["ulysses", "gather"]
_ATTENTION = functional.scaled_dot_product_attention


class Caught(TorchFunctionMode):
    """A context in which attention sees the whole sequence.

    It is a mode, for attention under any name, and stands in the place of torch's function as well: a mode sees nothing
    of what backward computes again.
    """

    def __init__(self, group: Any, attention: Attention, length: int) -> None:
        super().__init__()
        self._group, self._attention, self.length = group, attention, length
        self._learns = torch.is_grad_enabled()
        self._is_attending = False
        self._replaced: list[Any] = []

    def __enter__(self) -> Self:
        self._replaced.append(functional.scaled_dot_product_attention)
        functional.scaled_dot_product_attention = self.attend
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's
        functional.scaled_dot_product_attention = self._replaced.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result, with attention in our way."""
        kwargs = kwargs or {}
        return self.attend(*args, **kwargs) if func is _ATTENTION and not self._is_attending else func(*args, **kwargs)

    def attend(self, query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The result of attention to the whole sequence; on meta, where only shapes are asked for, to the own part."""
        if query.is_meta or self._is_attending:
            return _ATTENTION(query, *args, **kwargs)
        self._is_attending = True
        try:
            return self._attend(query, *args, **kwargs)
        finally:
            self._is_attending = False

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
                f"Attention between {query.shape[-2]} and {key.shape[-2]} positions, where this rank has {self.length} "
                "of the sequence under context=: only attention of the sequence to itself can be done in parts."
            )
        if self._learns and not torch.is_grad_enabled():
            raise ModuleError(
                "Attention ran without gradients inside of a call that has them: computed again in backward, as with "
                "checkpoint(use_reentrant=True), it would see only this rank's part of the sequence under context=. "
                "Checkpoint by use_reentrant=False, or by activation_checkpointing='units'."
            )
        if attn_mask is not None:
            raise ModuleError(
                f"scaled_dot_product_attention was called with a mask of shape {tuple(attn_mask.shape)}, which was "
                "made of this rank's part of the sequence under context=. Use is_causal=True, or no mask."
            )
        if self._attention == "ulysses":
            return self._by_heads(query, key, value, {"dropout_p": dropout_p, "is_causal": is_causal, **others})
        return self._by_keys(query, key, value, is_causal, {"dropout_p": dropout_p, **others})

    def _by_heads(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        size = self._group.size()
        for name, one in {"query": query, "key": key}.items():
            if one.ndim < 3 or one.shape[-3] % size:
                raise ModuleError(
                    f"The {name} of attention has the shape {tuple(one.shape)}, and context={size} doesn't divide its "
                    "heads (the third dim from the end). Use context_attention='gather'."
                )
        whole = [collectives.swap(one, -3, -2, self._group) for one in (query, key, value)]
        answer = _ATTENTION(whole[0], whole[1], whole[2], **options)
        return collectives.swap(answer, -2, -3, self._group)

    def _by_keys(self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, options: dict[str, Any]) -> Tensor:
        mask = None
        if is_causal:
            first, length = self._group.rank() * self.length, self._group.size() * self.length
            mask = torch.ones(self.length, length, dtype=torch.bool, device=query.device).tril(first)
        key, value = (collectives.gather(one, -2, self._group) for one in (key, value))
        return _ATTENTION(query, key, value, attn_mask=mask, **options)
