"""The forms of tensors that go from stage to stage."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a tensor that a rank will get."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"shape {self.shape} and {self.dtype}"


def form_of(tensor: Tensor) -> Form:
    """The form of a tensor."""
    return Form(tuple(tensor.shape), tensor.dtype)


def like_of(form: Form) -> Tensor:
    """A tensor of that form, on meta."""
    return torch.empty(form.shape, dtype=form.dtype, device="meta")
