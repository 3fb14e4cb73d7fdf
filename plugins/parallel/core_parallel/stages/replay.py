"""A model's own forward, run for one stage: parts of other stages are answered for, and all between
parts is computed.

So a layer gets the masks and positions that the forward makes for it, and these travel to no other
rank. What another rank's part returns is hollow here, see `hollow`: a part that needs it is seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from core import ModuleError
from core_parallel.microbatches import pieces
from core_parallel.modules import forwards, open_blocks
from core_parallel.stages import forms, hollow
from core_parallel.stages.answered_calls import AnsweredCalls
from core_parallel.stages.forms import TensorForm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

_CURE = "Use a module of your own whose pipeline() hands that on."
_UNSEEN = ("output_hidden_states", "output_attentions", "output_router_logits")

Known = dict[int, tuple[int | None, Any]]
"""By the number of a part: how many samples there were, and the forms of what it returned."""


class _Done(BaseException):
    """The last part of a stage has returned. Nothing in the forward notices it, see
    `open_blocks`.
    """


class Replay:
    """The forward of one model, with its parts answered for.

    Args:
        called: the modules whose forward calls them, of which one is called.
        title: of the first, for errors.
        parts: that it calls in this order; one that stands here twice is called twice.

    Attributes:
        owner: the one of `called` that was called.
        num_parts: number of parts.
    """

    def __init__(self, called: Sequence[nn.Module], title: str, parts: Sequence[nn.Module]) -> None:
        self._title, self._parts, self.num_parts = title, parts, len(parts)
        self.owner, self._forwards = called[0], forwards.own(called)
        self._names = {module: name for name, module in called[0].named_modules()}
        self._calls = AnsweredCalls(self._called)
        self._known: Known = {}
        self._answer: Callable[[int, Any], Any] | None = None
        self._next, self._device = 0, torch.device("cpu")
        self._samples: int | None = None

    def around(self, answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the model, of which the last part's is known.

        Args:
            answer: of the last part.
            args: of the model.
            kwargs: of the model.

        Raises:
            ModuleError: it needs the results of other parts too.
        """

        def answered(index: int, given: Any) -> Any:
            if index == self.num_parts - 1:
                return answer
            return self.hollow(index, given)

        return self.to_its_end(answered, args, kwargs)

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
        results: list[Any] = []

        def answered(index: int, given: Any) -> Any:
            if index == begin - 1:
                return arrived
            if begin <= index < end:
                result = self.computed(index, begin, given)
                if index < end - 1:
                    return result
                results.append(result)
                if open_blocks.around_call() is None:
                    raise _Done
            return self.hollow(index, given)

        try:
            self._forward(answered, args, kwargs, end)
        except _Done:
            pass
        except Exception:
            # Behind the stage forms may be unknown, and nothing counts: the block has ended.
            if not results:
                raise
        return results[0]

    def known(self, end: int) -> Known:
        """The forms of what parts before `end` have returned, for the rank that runs the next
        ones.
        """
        return {index: one for index, one in self._known.items() if index < end}

    def learn(self, known: Mapping[int, Any]) -> None:
        """Keep the forms of what parts on other ranks have returned, as `known` gives them."""
        self._known.update(known)

    # the forward ----------------------------------------------------------------------------------

    def to_its_end(
        self, answer: Callable[[int, Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of the model.

        Args:
            answer: the result of a part, of its number and what it is given.
            args: of the model.
            kwargs: of the model.

        Raises:
            ModuleError: it needs the results of other parts than the last too.
        """
        result = self._forward(answer, args, kwargs, len(self._parts))
        if hollow.is_in(result):
            raise ModuleError(
                f"{self._title} computes its result also from what other parts than the last "
                f"return, and {self._name(-1)} alone is shared by all ranks. {_CURE}"
            )
        return result

    def _forward(
        self,
        answer: Callable[[int, Any], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        end: int,
    ) -> Any:
        self._answer, self._next, self._samples = answer, 0, pieces.num_samples((args, kwargs))
        first = _first_tensor((args, kwargs))
        if first is not None:
            self._device = first.device
        with forwards.replaced(self._forwards), self._calls.of(self._parts):
            result = self.owner.forward(*args, **kwargs)
        if self._next < end:
            raise ModuleError(
                f"{self._title} returned without a call of {self._name(self._next)}, which is one "
                "of its parts. A pipeline calls every part once: switch off what skips layers."
            )
        return result

    def _called(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        index = self._next
        if index == len(self._parts) or self._parts[index] is not part:
            expected = "nothing more"
            if index < len(self._parts):
                expected = self._name(index)
            raise ModuleError(
                f"{self._title} called its part {self._names[part]!r} where {expected} comes "
                "next by the plan of its config, by pipeline() or parts=, or as they were added. A "
                "pipeline calls every part once, in that order: give the model "
                "input_ids, and switch off what skips or repeats layers."
            )
        self._next += 1
        assert self._answer is not None, "calls are answered within the forward"
        return self._answer(index, (args, kwargs))

    def computed(self, index: int, begin: int, given: Any) -> Any:
        """The result of a part of the stage that begins with another one.

        Raises:
            ModuleError: it needs the results of other parts than the one before the stage.
        """
        args, kwargs = given
        result: Any = None
        if not hollow.is_in(given):
            result = self._calls.call(self._parts[index], args, kwargs)
        if hollow.is_in((given, result)):
            raise ModuleError(
                f"{self._title} computes {self._name(index)} also from results of other parts than "
                f"the one before its stage, {self._name(begin - 1)}, which alone travels to its "
                f"rank. {_CURE}"
            )
        self._known[index] = self._samples, forms.of(result)
        return result

    def hollow(self, index: int, given: Any) -> Any:
        """The result of a part that another rank has; as the first tensor that it is given, if its
        form is unknown.
        """
        what = f"what {self._name(index)} returns"
        known = self._known.get(index)
        if known is None:
            known = self._samples, forms.of(_first_tensor(given))
        samples, described = known

        def made(form: TensorForm) -> Tensor:
            return hollow.make(form.for_samples(samples, self._samples), self._device, what)

        return tree_map_only(TensorForm, made, described)

    def _name(self, index: int) -> str:
        return repr(self._names[self._parts[index]])

    def refuse(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse what a model of transformers is asked for, and no pipeline has.

        Raises:
            ModuleError: with its name.
        """
        config = getattr(self.owner, "config", None)
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


def _first_tensor(tree: Any) -> Tensor | None:
    return next((one for one in tree_leaves(tree) if isinstance(one, Tensor)), None)
