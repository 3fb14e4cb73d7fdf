"""Functions inside models of transformers: for masks of padding, packed samples and windows, and
shifted labels.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from core import ModuleError
from core_parallel.communication import collectives
from core_parallel.context.attention import Attention
from core_parallel.following.mode import set_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAKER = "transformers.masking_utils"
_LOSSES = "transformers.loss.loss_utils"
_IGNORED = -100
_BY_POSITION = ("attention_mask", "position_ids", "block_sequence_ids")
_OWN_RULES = ("or_mask_function", "and_mask_function")


class TransformersFunctions:
    """The functions by which a model of transformers makes masks and shifts labels, given the whole
    sequence.

    They stand under their names in the files of models, such as `create_causal_mask`, and in the
    table of losses, and are replaced there.

    Args:
        module: the model.
        group: of the ranks that have a part of the sequence each.
        attention: by which exchange attention sees the whole; by `"gather"` a rank makes the rows
            of its own part.
    """

    def __init__(self, module: nn.Module, group: Any, attention: Attention) -> None:
        self._group, self._attention, self._length = group, attention, 0
        files = {type(part).__module__ for part in module.modules()}
        self._places = [
            (owner, name, one, torch.compiler.disable(self._of_whole(one)))
            for owner in (vars(sys.modules[file]) for file in files if file in sys.modules)
            for name, one in owner.items()
            if name.startswith("create_")
            and "recurrent" not in name
            and getattr(one, "__module__", "") == _MAKER
        ]
        table = sys.modules[_LOSSES].LOSS_MAPPING if _LOSSES in sys.modules else {}
        self._places += [
            (table, name, one, self._shifted(one))
            for name, one in table.items()
            if one.__name__ == "ForCausalLMLoss"
        ]

    @contextmanager
    def of(self, length: int) -> Iterator[None]:
        """A context in which masks and labels are those of the whole sequence.

        Args:
            length: of this rank's part of it.
        """
        self._length = length
        for owner, name, _, whole in self._places:
            owner[name] = whole
        try:
            yield
        finally:
            for owner, name, own, _ in self._places:
                owner[name] = own

    def _of_whole(self, make: Callable[..., Any]) -> Callable[..., Any]:
        names = list(signature(make).parameters)

        @wraps(make)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            values = given[names[1]]
            if (
                values.is_meta
                or values.shape[1] != self._length
                or given.get("encoder_hidden_states") is not None
            ):
                return make(**given)
            self._check(given)
            with set_aside():
                given[names[1]] = values[:, :1].expand(
                    -1, self._length * self._group.size(), *values.shape[2:]
                )
                for name in _BY_POSITION:
                    one = given.get(name)
                    if isinstance(one, Tensor) and one.ndim <= 2 and one.shape[-1] == self._length:
                        given[name] = collectives.gather(one, -1, self._group)
                own_rows = nullcontext() if self._attention == "ulysses" else self._of_own_rows()
                with own_rows:
                    return make(**given)

        return call

    def _shifted(self, lose: Callable[..., Any]) -> Callable[..., Any]:
        """A loss of the next word, of which the last one of a rank's part is the first of the next
        rank's.
        """
        names = list(signature(lose).parameters)

        def call(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            labels: Any = given.get("labels")
            is_given = (
                given.get("shift_labels") is not None
                or not isinstance(labels, Tensor)
                or labels.is_meta
            )
            if not is_given and labels.shape[-1] == self._length:
                whole = functional.pad(
                    collectives.gather(labels, -1, self._group), (0, 1), value=_IGNORED
                )
                given["shift_labels"] = whole.narrow(
                    -1, self._group.rank() * self._length + 1, self._length
                ).contiguous()
            return lose(**given)

        return call

    def _check(self, given: dict[str, Any]) -> None:
        if (found := given["config"]._attn_implementation) != "sdpa":
            raise ModuleError(
                f"The model attends by attn_implementation={found!r}, which would see a rank's "
                "part of the sequence alone under context=. Load it with "
                "attn_implementation='sdpa'."
            )
        if rules := [name for name in _OWN_RULES if given.get(name) is not None]:
            raise ModuleError(
                f"The model makes its mask by a rule of its own ({rules[0]}), which knows a rank's "
                "part of the sequence alone under context=. Give it the whole mask as "
                "attention_mask, of shape (samples, 1, length, length)."
            )

    @contextmanager
    def _of_own_rows(self) -> Iterator[None]:
        table = sys.modules[_MAKER].ALL_MASK_ATTENTION_FUNCTIONS
        make = table["sdpa"]

        def rows(**given: Any) -> Any:
            padding, window, length = (
                given["attention_mask"],
                given.get("local_size"),
                given["kv_length"],
            )
            is_full = (padding is None or bool(padding.all())) and (
                window is None or window > length
            )
            if not is_full or not (
                given.get("allow_is_causal_skip") or given.get("allow_is_bidirectional_skip")
            ):
                no_skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
                first = self._group.rank() * self._length
                given = {
                    **given,
                    **no_skips,
                    "q_length": self._length,
                    "q_offset": given["q_offset"] + first,
                }
            return make(**given)

        table["sdpa"] = rows
        try:
            yield
        finally:
            del table["sdpa"]
            if table["sdpa"] is not make:
                table["sdpa"] = make
