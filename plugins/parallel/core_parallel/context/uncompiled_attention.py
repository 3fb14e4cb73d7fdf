"""Attention outside of the graphs of a compiled model."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core_parallel.context.attention import Caught


class Apart:
    """Attention that sees the whole sequence, in eager mode between graphs.

    It is put in the place of torch's function: a mode of torch would be traced with all of the
    model.
    """

    def __init__(self) -> None:
        self._caught: Caught | None = None
        self._own = torch.compiler.disable(self._attend)  # one, since graphs are compiled for it

    @contextmanager
    def around(self, caught: Caught) -> Iterator[None]:
        """A context in which this one answers."""
        before = self._caught, functional.scaled_dot_product_attention
        self._caught, functional.scaled_dot_product_attention = caught, self._own
        try:
            yield
        finally:
            self._caught, functional.scaled_dot_product_attention = before

    def _attend(self, *args: Any, **kwargs: Any) -> Any:
        assert self._caught is not None, "it is called within the context"
        return self._caught.attend(*args, **kwargs)
