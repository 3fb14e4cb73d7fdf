"""A model's own forward, run for one stage: parts of other stages are stood in for, and all between
parts is computed.

So a layer gets the masks and positions that the forward makes for it, and these travel to no other
rank.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from core import ModuleError
from core_parallel.following.mode import set_aside
from core_parallel.modules import absent, forwards, open_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_CURE = "Use a module of your own whose pipeline() hands that on."
_UNSEEN = ("output_hidden_states", "output_attentions", "output_router_logits")


class _Done(BaseException):
    """The last part of a stage has returned. Nothing in the forward notices it, see
    `open_blocks`.
    """


class Replay:
    """The forward of one model, with its parts answered for.

    Args:
        owner: has that forward.
        title: of the owner, for errors.
        parts: that it calls, each once, in this order.
    """

    def __init__(self, owner: nn.Module, title: str, parts: Sequence[nn.Module]) -> None:
        self._owner, self._title, self._parts = owner, title, parts
        self._names = {id(module): name for name, module in owner.named_modules()}
        stand_ins = {
            id(part): _PartStandIn(part, index, self._called) for index, part in enumerate(parts)
        }
        self._places = [
            (module, key, child, stand_ins[id(child)])
            for module in owner.modules()
            for key, child in module._modules.items()
            if child is not None and id(child) in stand_ins
        ]
        self._answer: Any = None
        self._next, self._filling = 0, float("nan")
        self._looked_at: set[int] = set()
        self._forms: dict[Any, Any] = {}
        self._is_looking = False

    def around(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of the model, of which the last part's is that of `call`, with the same
        arguments.

        Args:
            call: computes all parts.
            args: of the model.
            kwargs: of the model.

        Raises:
            ModuleError: the forward does something else with its parts than its plan says.
        """
        self._refuse(args, kwargs)
        last = len(self._parts) - 1
        answers: list[Any] = []

        def answer(index: int, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if index < last:
                return self._of_shape(index, given, named, self._filling)
            if not answers:
                answers.append(call(*args, **kwargs))
            return answers[0]

        def run() -> Any:
            with self._answered_by(answer):
                result = self._forward(args, kwargs)
                self._refuse_skipped(last + 1)
            return result

        with self._looking(last) as looks:
            result = run()
            if looks and self._leaks(result, answers, run):
                raise ModuleError(
                    f"{self._title} computes its result also from what other parts than the last "
                    f"return, and {self._name(last)} alone is shared by all ranks. {_CURE}"
                )
        return result

    def run(
        self, begin: int, end: int, args: tuple[Any, ...], kwargs: dict[str, Any], arrived: Any
    ) -> Any:
        """The result of the part before `end`, and so of the parts from `begin` on.

        Args:
            begin: number of the first part.
            end: number of the part after the last.
            args: of the model.
            kwargs: of the model.
            arrived: what the part before `begin` has returned; None if there is none.

        Raises:
            ModuleError: they need the results of other parts too.
        """
        if begin:
            args, kwargs = tree_map(_detached, (args, kwargs))
        with self._looking(begin - 1) as looks:
            result = self._run(begin, end, args, kwargs, arrived)
            if begin and looks:
                self._refuse_leaks(begin, end, args, kwargs, arrived, result)
        return result

    @contextmanager
    def _looking(self, index: int) -> Iterator[bool]:
        """A context in which placeholders are NaN, at the first call that begins with the result of
        this part.
        """
        self._is_looking, before = index not in self._looked_at, self._is_looking
        self._looked_at.add(index)
        try:
            yield self._is_looking
        finally:
            self._is_looking = before

    def _run(
        self, begin: int, end: int, args: tuple[Any, ...], kwargs: dict[str, Any], arrived: Any
    ) -> Any:
        results: list[Any] = []

        def answer(index: int, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if index >= end:
                return tree_map(_copied, self._of_shape(index, given, named, 0.0))
            if index < begin - 1:
                return self._of_shape(index, given, named, self._filling)
            result = arrived if index == begin - 1 else self._parts[index](*given, **named)
            if index == end - 1:
                results.append(result)
                if open_blocks.around_call() is None:
                    raise _Done
                # the forward goes on to its end, and may write into it
                return tree_map(_copied, result)
            return result

        with self._answered_by(answer):
            with suppress(_Done):
                self._forward(args, kwargs)
            self._refuse_skipped(end)
        return results[0]

    # the forward ----------------------------------------------------------------------------------

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return type(self._owner).forward(self._owner, *args, **kwargs)

    @contextmanager
    def _answered_by(self, answer: Any) -> Iterator[None]:
        """A context in which calls of parts are answered; within another one, which goes on
        afterwards.
        """
        before = self._answer, self._next
        self._answer, self._next = answer, 0
        for module, key, _, stand_in in self._places:
            module._modules[key] = stand_in
        try:
            yield
        finally:
            self._answer, self._next = before
            if self._answer is None:
                for module, key, part, _ in self._places:
                    module._modules[key] = part

    def _called(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if index != self._next:
            expected = self._name(self._next) if self._next < len(self._parts) else "nothing more"
            raise ModuleError(
                f"{self._title} called its part {self._name(index)} where {expected} comes next by "
                "the plan of its config, or as they were added. A pipeline calls every part once, "
                "in that order: give the model input_ids, and switch off what skips or repeats "
                "layers."
            )
        self._next += 1
        return self._answer(index, args, kwargs)

    def _of_shape(
        self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], filling: float
    ) -> Any:
        """Tensors like those that a part returns, with nothing in them but one number."""
        leaves, form = tree_flatten((args, kwargs))
        key = (
            index,
            str(form),
            *((one.shape, one.dtype) if isinstance(one, Tensor) else _plain(one) for one in leaves),
        )
        if key not in self._forms:
            self._forms[key] = self._on_meta(index, args, kwargs)
        first = next(one for one in leaves if isinstance(one, Tensor))

        def filled(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if (
                index
                and not self._is_looking
                and (leaf.shape, leaf.dtype) == (first.shape, first.dtype)
            ):
                return first  # nothing looks at it, and it costs nothing
            return torch.full(
                leaf.shape,
                filling if leaf.is_floating_point() else 0,
                dtype=leaf.dtype,
                device=first.device,
            )

        return tree_map(filled, self._forms[key])

    def _on_meta(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        part = self._parts[index]
        tensors = {**dict(part.named_parameters()), **dict(part.named_buffers())}
        on_meta = {
            name: torch.empty(one.shape, dtype=one.dtype, device="meta")
            for name, one in tensors.items()
        }
        args, kwargs = tree_map(_on_meta, (args, kwargs))
        try:
            with absent.inspecting(), forwards.without_hooks(part.modules()), torch.no_grad():
                return functional_call(part, on_meta, args, kwargs)
        except Exception:
            # such as a layer that looks at numbers, as experts do: most return what they were given
            return next(one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor))

    # what a plan doesn't give ---------------------------------------------------------------------

    def _refuse(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        config = getattr(self._owner, "config", None)
        asked = next(
            (name for name in _UNSEEN if kwargs.get(name, getattr(config, name, False))), None
        )
        if asked is not None:
            raise ModuleError(
                f"{self._title} was asked for {asked}, which layers on all ranks of the pipeline "
                "have. Leave it out: the result has what comes after the last part."
            )
        for value in (*args, *kwargs.values()):
            if hasattr(value, "get_seq_length"):
                raise ModuleError(
                    f"{self._title} was given a {type(value).__name__}, in which each rank of the "
                    "pipeline would keep its own layers. Generate text after training, from a "
                    "checkpoint, on one device."
                )
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
            raise ModuleError(
                f"{self._title} was given a tensor that wants a gradient. Its layers use it on "
                "several ranks of the pipeline; with a config's plan, arguments have none. Compute "
                "it in a part of a module with pipeline()."
            )

    def _refuse_skipped(self, end: int) -> None:
        if self._next < end:
            raise ModuleError(
                f"{self._title} returned without a call of {self._name(self._next)}, which is one "
                "of its parts. A pipeline calls every part once: switch off what skips layers."
            )

    def _refuse_leaks(
        self,
        begin: int,
        end: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arrived: Any,
        result: Any,
    ) -> None:
        """Refuse a stage that computes with placeholders, which are NaN: then it needs more than
        the part before.
        """
        if self._leaks(result, arrived, lambda: self._run(begin, end, args, kwargs, arrived)):
            raise ModuleError(
                f"{self._title} computes {self._name(begin)} also from results of other parts than "
                f"the one before, {self._name(begin - 1)}, which alone travels to its rank. {_CURE}"
            )

    def _leaks(self, result: Any, arrived: Any, again: Callable[[], Any]) -> bool:
        """True if NaN in a result comes from placeholders, since there is none with zeros in their
        place.
        """
        if not _has_nan(result) or _has_nan(arrived):
            return False
        self._filling = 0.0
        try:
            with torch.no_grad():
                return not _has_nan(again())
        finally:
            self._filling = float("nan")

    def _name(self, index: int) -> str:
        return repr(self._names[id(self._parts[index])])


class _PartStandIn(nn.Module):
    """A part while its model's forward runs; it has the attributes of the part."""

    def __init__(self, part: nn.Module, index: int, called: Callable[..., Any]) -> None:
        super().__init__()
        self.part, self._index, self._called = part, index, called

    def __getattr__(self, name: str) -> Any:
        """An attribute of the part."""
        own = super().__getattr__("part")
        return own if name == "part" else getattr(own, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The answer."""
        return self._called(self._index, args, kwargs)


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _plain(leaf: Any) -> Any:
    return leaf if isinstance(leaf, bool | int | float | str | None) else type(leaf)


def _on_meta(leaf: Any) -> Any:
    if hasattr(leaf, "get_seq_length"):  # a cache, which would keep what lies on meta
        return None
    return (
        torch.empty_like(leaf, device="meta", requires_grad=False)
        if isinstance(leaf, Tensor)
        else leaf
    )


def _has_nan(tree: Any) -> bool:
    with set_aside():
        return any(
            isinstance(one, Tensor) and bool(torch.isnan(one.detach()).any())
            for one in tree_leaves(tree)
        )
