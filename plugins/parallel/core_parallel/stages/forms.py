"""The forms of tensors, which a rank knows of those that it doesn't have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


@dataclass(frozen=True, slots=True)
class TensorForm:
    """The form of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"shape {self.shape} and {self.dtype}"

    def for_samples(self, before: int | None, now: int | None) -> TensorForm:
        """The form of a tensor as this one, where there are as many samples as it says."""
        if now is None or not self.shape or self.shape[0] != before:
            return self
        return TensorForm((now, *self.shape[1:]), self.dtype)


def of(tree: Any) -> Any:
    """A structure with the forms of its tensors; of what else is in it, numbers and words."""
    return tree_map(_form_of, tree)


def like(form: TensorForm) -> Tensor:
    """A tensor of that form, on meta."""
    return torch.empty(form.shape, dtype=form.dtype, device="meta")


def _form_of(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return TensorForm(tuple(leaf.shape), leaf.dtype)
    return leaf if isinstance(leaf, bool | int | float | str) else None
