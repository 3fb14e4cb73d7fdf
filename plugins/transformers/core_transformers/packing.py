"""Documents packed in rows of a model of transformers, whose `position_ids` begin again with
each.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from transformers import masking_utils

from core import ModuleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

_SEPARATING = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
_ENDS = ("cu_seq_lens_q", "seq_idx")
"""Arguments that say where documents end, for layers that carry a state along a row."""


class DocumentsApart:
    """Hooks of a model: it trains without a cache, and what would show packed documents to each
    other is refused.

    transformers looks where positions begin again only if there is neither a mask nor a cache, and
    makes a cache unless its caller says otherwise; some models don't look at all.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Create the hooks and register them."""
        self._calls = 0
        self._undo: Callable[[Any], Any] | None = None
        self._has_looked = False
        model.register_forward_pre_hook(self.before_forward, with_kwargs=True)
        model.register_forward_hook(self.after_forward, always_call=True)

    def before_forward(
        self, model: Any, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        """Switch the cache off in training, and refuse positions that nothing will look at.

        Raises:
            ModuleError: they begin again, beside a mask or a cache, or in a model that carries a
                state along a row.
        """
        names = _names(type(model).forward)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        begin_again = self._begin_again(model, given)
        if begin_again:
            _refuse_hidden(model, names, given)
            if given.get("attention_mask") is None:  # else it says itself what is seen
                self._has_looked, self._undo = False, masking_utils.find_packed_sequence_indices
                masking_utils.find_packed_sequence_indices = self._find
        if (
            "use_cache" not in names
            or given.get("use_cache") is not None
            or given.get("past_key_values") is not None
        ):
            return None
        return (args, {**kwargs, "use_cache": False}) if model.training or begin_again else None

    def after_forward(self, model: Any, args: Any, output: Any) -> None:
        """See that the positions were looked at.

        Raises:
            ModuleError: they weren't.
        """
        if self._undo is None:
            return
        masking_utils.find_packed_sequence_indices, self._undo = self._undo, None
        if output is not None and not self._has_looked:
            raise _error(model, "it doesn't look at them")

    def _find(self, position_ids: torch.Tensor) -> Any:
        self._has_looked = True
        assert self._undo is not None, "it stands for another function"
        return self._undo(position_ids)

    def _begin_again(self, model: Any, given: dict[str, Any]) -> bool:
        """True if positions of (samples, length) begin again between two tokens that a mask has, if
        there is one.
        """
        positions, mask = given.get("position_ids"), given.get("attention_mask")
        if (
            not isinstance(positions, torch.Tensor)
            or positions.ndim != 2
            or torch.compiler.is_compiling()
        ):
            return False
        self._calls += 1
        # Elsewhere than on a CPU the answer makes it wait for the device.
        if model.training and positions.device.type != "cpu" and self._calls.bit_count() > 1:
            return False
        found = (positions[:, 1:] < positions[:, :-1]) | (positions[:, 1:] == 0)
        if mask is not None and _is_of_tokens(mask) and mask.shape[1] == positions.shape[1]:
            found = found & (mask[:, 1:] != 0) & (mask[:, :-1] != 0)
        return bool(found.any())


def _is_of_tokens(mask: Any) -> bool:
    return isinstance(mask, torch.Tensor) and mask.ndim == 2


def _refuse_hidden(model: Any, names: list[str], given: dict[str, Any]) -> None:
    config, mask = model.config.get_text_config(), given.get("attention_mask")
    kinds = {
        *(getattr(config, "layer_types", None) or ()),
        *(getattr(config, "layers_block_type", None) or ()),
    }
    if "position_ids" not in names:
        raise _error(model, "it doesn't look at them")
    if kinds - _SEPARATING and not any(given.get(name) is not None for name in _ENDS):
        raise _error(
            model, f"its layers of the kind {min(kinds - _SEPARATING)!r} don't look at them"
        )
    if _is_of_tokens(mask):
        raise _error(
            model, "beside an attention_mask of two dimensions transformers doesn't look at them"
        )
    if (
        isinstance(mask, torch.Tensor)
        and mask.dtype == torch.bool
        and config._attn_implementation == "eager"
    ):
        raise _error(model, "eager attention adds up its mask, which is of truth values")
    if given.get("past_key_values") is not None or given.get("use_cache"):
        raise _error(model, "beside a cache transformers doesn't look at them")
    if (
        mask is None
        and "flash" in str(config._attn_implementation)
        and len(given["position_ids"]) > 1
    ):
        raise _error(model, "flash attention looks at them in batches of one row only")


def _error(model: Any, reason: str) -> ModuleError:
    return ModuleError(
        f"The position_ids for {type(model).__name__} begin again within a row, as where documents "
        f"are packed, and {reason}: a document would see those before it. Pass position_ids "
        "without attention_mask and with use_cache=False to a model that looks at them; to others "
        "a mask of four dimensions, or one document a row."
    )


@cache
def _names(forward: Callable[..., Any]) -> list[str]:
    """The names of a method's arguments, in their order."""
    return list(inspect.signature(forward).parameters)[1:]
