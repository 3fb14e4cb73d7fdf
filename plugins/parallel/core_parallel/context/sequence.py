"""A sequence cut over the ranks of a context group, within the call of the model.

Jacobs et al., "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long
Sequence Transformer Models", 2023; Dubey et al., "The Llama 3 Herd of Models", 2024, which gathers
keys and values.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from core import ModuleError
from core.contract import refuse
from core_parallel.communication import collectives
from core_parallel.context import gradient_terms, masks
from core_parallel.context.attention import AXIS, Attention, Caught
from core_parallel.context.sequence_part import Positions, SequencePart
from core_parallel.context.transformers_functions import TransformersFunctions
from core_parallel.following.lengths import Length, Ratio
from core_parallel.following.marks import Mixed, PartAlong, mark_of, place_of, put
from core_parallel.following.mode import Following, by_row
from core_parallel.microbatches.recorded_logs import RecordedLogs
from core_parallel.modules import forwards, graphs, own_state
from core_parallel.modules.compiled_parts import uncompiled
from core_parallel.modules.followed_calls import FollowedCalls
from core_parallel.modules.parted_tensor import PartedTensor, local_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager


_turns = itertools.count(1)
_CURE = (
    "Positions must be an argument, such as position_ids, and not follow from the length that "
    "forward sees; only scaled_dot_product_attention may look at other positions, without a window "
    "and without a border of packed samples. A loss inside is by cross_entropy, of labels that "
    "were shifted before the call."
)


class Context:
    """The call of one module by the ranks of a context group, with the same arguments on all.

    Each computes its part of the sequence, and all get the whole result. Gradients in the call are
    those of one device, of the rank's positions; those of parameters are terms, see
    `gradient_terms`. Whatever a step does beside the call, all ranks do alike.

    Args:
        module: the one that is called.
        user: the module around it, in which a hook may keep what the call has computed.
        group: of the ranks.
        attention: by which exchange attention sees the whole sequence.
        dim: of the tensors that the module is given, which is the sequence.
        draws: makes a context in which a rank draws random numbers of its own.
        joins: all ranks get the whole result; else each keeps the positions that it has computed.

    Attributes:
        is_running: a call is under way.
        attention: sees the whole sequence within a call.
        by_token: parts that treat each token by itself, whatever they do for it: experts, and
            layers that are cut.
        length: of this rank's part, in the newest call.
        turn: the number of that call among those of all modules; 0 before the first.
    """

    def __init__(
        self,
        module: nn.Module,
        user: nn.Module,
        group: Any,
        attention: Attention,
        dim: int,
        draws: Callable[[], AbstractContextManager[Any]],
        *,
        joins: bool = True,
    ) -> None:
        self._user = user
        self.module, self._group, self._dim, self._draws = module, group, dim, draws
        self._size, self._rank = group.size(), group.rank()
        self._calls = FollowedCalls(module)
        self._following: Following | None = None
        self._functions = TransformersFunctions(module, group, attention)
        self.attention = Caught(group, attention)
        self.by_token: Sequence[nn.Module] = ()
        self.is_running, self.length, self.turn = False, 0, 0
        self._follows, self._joins = True, joins

    def __call__(self, forward: Any, args: Any, kwargs: Any) -> Any:
        """All ranks of the group. The result of the module's forward for the whole sequence."""
        if self.is_running:
            return forward(*args, **kwargs)
        self._length((args, kwargs))
        if self._follows and self._calls.has((args, kwargs)):
            with self.followed(), self.said():
                return self._run(forward, args, kwargs)
        return self._run(forward, args, kwargs)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """All ranks of the group. A context in which calls in parts are followed from operation to
        operation.

        Raises:
            ModuleError: the result, or what the module keeps, isn't a part of what one device has.
        """
        before = own_state.values_of(self.module.named_modules())

        def arrived(tensor: Tensor) -> PartAlong | None:
            has_positions = tensor.ndim > self._dim and tensor.shape[self._dim] == self.length
            return PartAlong(self._dim) if has_positions else None

        self._following = Following(AXIS, _CURE, arrived, self._group)
        handles = [handle for one in self.by_token for handle in by_row(one, AXIS)]
        try:
            # first: what keeps a tensor with a graph is refused as such
            with uncompiled():
                yield
        finally:
            self._following = None
            for handle in handles:
                handle.remove()
        changes = {
            place
            for place, value in own_state.values_of(self.module.named_modules()).items()
            if mark_of(value, AXIS) is not None
            or (isinstance(value, Length | Ratio) and value is not before.get(place))
        }
        if changes:
            text = (
                f"{type(self.module).__name__} changes "
                f"{', '.join(map(repr, own_state.names_of(changes)))} in itself, "
                f"and to other values where each of {self._size} ranks has a part of the sequence: "
                "a statistic, a count or a cache of what forward sees. Return what it is made of "
                "by position, and update it in the step, after the call."
            )
            refuse(ModuleError(text), axis=AXIS)

    @contextmanager
    def said(self) -> Iterator[None]:
        """A context in which errors of torch say that the module is given parts."""
        try:
            yield
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # such as one of memory
                raise
            raise ModuleError(
                f"{error} Each of {self._size} ranks called {type(self.module).__name__} with a "
                f"part of dim {self._dim}, the sequence under context=. If that is no sequence, "
                "name its dim by context_dim=, or leave context out."
            ) from error

    def marking(self) -> AbstractContextManager[Any]:
        """A context for what computes with parts: within `followed` it marks the results."""
        return self._following or nullcontext()

    def share(self, loss: Tensor) -> None:
        """Before the backward of one loss that a schedule runs: see `gradient_terms.share`."""
        gradient_terms.share(loss, self._group)

    @contextmanager
    def unfollowed(self) -> Iterator[None]:
        """A context whose calls are those of one microbatch: a schedule says which are followed."""
        self._follows = False
        try:
            yield
        finally:
            self._follows = True

    @contextmanager
    def caught(self) -> Iterator[None]:
        """A context in which attention sees the whole sequence, as in the newest call."""
        with self._functions.of(self.length), self.attention.of(self.length):
            yield

    def _run(self, forward: Any, args: Any, kwargs: Any) -> Any:
        length = self._length((args, kwargs))
        args, kwargs = self._cut((args, kwargs), length)
        looks = torch.is_grad_enabled() and self._following is not None
        before = graphs.kept(self._user.named_modules()) if looks else set()
        self.is_running, self.length, self.turn = True, length // self._size, next(_turns)
        try:
            draws = self._draws() if self.module.training else nullcontext()
            with (
                self.caught(),
                draws,
                RecordedLogs().instead_of(self.module),
                self.marking(),
            ):
                result = forward(*args, **kwargs)
        finally:
            self.is_running = False
        if looks:
            graphs.refuse_kept(self._user.named_modules(), before)
        return tree_map(lambda leaf: self._whole(leaf, length), result)

    def _length(self, given: Any) -> int:
        """The length of the sequence: of the first tensor that has that dim."""
        for leaf in tree_flatten(given)[0]:
            if isinstance(leaf, Tensor) and leaf.ndim > self._dim:
                length = leaf.shape[self._dim]
                if length % self._size:
                    raise ModuleError(
                        f"{type(self.module).__name__} was called with a sequence of {length} (dim "
                        f"{self._dim} of shape {tuple(leaf.shape)}), which context={self._size} "
                        "doesn't divide. Pad it, or choose another size."
                    )
                return length
        raise ModuleError(
            f"{type(self.module).__name__} was called without a tensor that has the dim "
            f"{self._dim}, which is the sequence under context=. Say which one is by context_dim=."
        )

    def _cut(self, given: Any, length: int) -> Any:
        leaves, form = tree_flatten(given)
        num_samples = next(
            len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim > self._dim
        )
        learns = torch.is_grad_enabled()

        def own(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if (
                leaf.ndim > self._dim
                and leaf.shape[self._dim] == length
                and not masks.is_one(leaf, length, num_samples)
            ):
                part = collectives.cut(leaf, self._dim, self._group)
                if self._following is not None:  # which isn't entered yet
                    put([part], AXIS, PartAlong(self._dim))
                return part
            return collectives.enter(leaf, self._group) if learns and leaf.requires_grad else leaf

        return tree_unflatten([own(leaf) for leaf in leaves], form)

    def _whole(self, leaf: Any, length: int) -> Any:
        if isinstance(leaf, PartedTensor):
            leaf = leaf.returned()
        own, has_losses = local_of(leaf), self.attention.has_losses
        if self._following is not None and self._is_refused(own):
            return leaf
        if isinstance(own, Tensor) and own.requires_grad and not torch.compiler.is_compiling():
            own.register_hook(partial(gradient_terms.refuse_terms, self.module, self._size))
        if not isinstance(leaf, Tensor) or (has_losses and leaf.ndim == 0):
            return leaf
        if leaf.ndim <= self._dim or leaf.shape[self._dim] != length // self._size:
            text = (
                f"{type(self.module).__name__} returned a tensor of shape {tuple(leaf.shape)}, "
                f"whose dim {self._dim} isn't the {length // self._size} positions of this rank: "
                "what it was made of is unknown. Return values by position, or a loss by "
                "cross_entropy; compute other losses and means in the step."
            )
            refuse(ModuleError(text), axis=AXIS)
            return leaf
        if self._joins:
            return collectives.join(leaf, self._dim, self._group)
        return SequencePart(
            leaf, Positions(self._dim, self._rank * self.length, length), self._group
        )

    def _is_refused(self, own: Any) -> bool:
        """Refuse a result that was computed of this rank's positions otherwise than by position.

        Returns:
            True if it was, and isn't joined.
        """
        mark, has_losses = mark_of(own, AXIS), self.attention.has_losses
        is_loss = mark is None and has_losses
        if (
            not isinstance(own, Tensor)
            or mark == PartAlong(self._dim)
            or (is_loss and not own.ndim)
        ):
            return False
        if own.ndim <= self._dim and not has_losses:
            return False  # it has no sequence, which is said otherwise
        operation = (
            f" At the first difference it computes {mark}." if isinstance(mark, Mixed) else ""
        )
        text = (
            f"{type(self.module).__name__} computes other values where each of {self._size} ranks "
            f"has a part of the sequence.{operation} {_CURE}"
        )
        refuse(ModuleError(text), axis=AXIS, place=place_of(mark))
        return own.ndim <= self._dim or own.shape[self._dim] != self.length


def newest_turn(contexts: Iterable[Context]) -> int:
    """The turn of the newest of all their calls; 0 before the first."""
    return max((one.turn for one in contexts), default=0)


def computed_again(contexts: Sequence[Context], began: int) -> AbstractContextManager[Any]:
    """All ranks of the group. A context for backward: attention that is computed again sees the
    whole sequence.

    Args:
        contexts: of a module; the newest call counts.
        began: the newest turn when the step began; -1 if it needs no call.

    Raises:
        ModuleError: none of them was called in the step, whose work has been done whole on all
            ranks.
    """
    newest = max(contexts, key=lambda one: one.turn, default=None)
    if newest is not None and newest.turn == began:
        names = " nor ".join(type(one.module).__name__ for one in contexts)
        raise ModuleError(
            f"The step called neither {names}, whose sequence context= cuts, but perhaps a module "
            "inside: every rank has computed the whole sequence. Call the module itself, or move "
            "what is between into its forward."
        )
    return nullcontext() if newest is None or not newest.turn else newest.caught()


def check_whole_batches(module: nn.Module) -> None:
    """Refuse batch norms, which would take their statistics from a part of the sequence.

    Raises:
        ModuleError: there is one.
    """
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            text = (
                f"{type(part).__name__} {name!r} would take its statistics from a rank's part of "
                "the sequence under context=. Use a norm that doesn't depend on other positions, "
                "such as LayerNorm."
            )
            refuse(ModuleError(text), axis=AXIS)


@contextmanager
def in_parts(contexts: Sequence[Context]) -> Iterator[None]:
    """A context in which the outermost of these modules' calls are made in parts. Copies made
    elsewhere aren't.
    """
    own = forwards.own(one.module for one in contexts)

    def answering(context: Context, forward: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            forwards.put(own)  # so that what is called inside is as it was, also for a compiler
            try:
                return context(forward, args, kwargs)
            finally:
                forwards.put(answers)

        return call

    answers = {one.module: answering(one, one.module.forward) for one in contexts}
    with forwards.replaced(answers):
        yield
