"""A sequence cut over the ranks of a context group, within the call of the model.

Jacobs et al., "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long Sequence Transformer
Models", 2023; Dubey et al., "The Llama 3 Herd of Models", 2024, which gathers keys and values.
"""

from __future__ import annotations

import itertools
import random
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from core import ModuleError
from core_parallel.communication import collectives
from core_parallel.context.attention import Attention, Caught
from core_parallel.microbatches.recorded_logs import RecordedLogs
from core_parallel.modules import forwards, graphs, own_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from core_parallel.context.uncompiled_attention import Apart

_turns = itertools.count(1)


class Context:
    """The call of one module by the ranks of a context group, with the same arguments on all.

    Each computes its part of the sequence, and all get the whole result. Gradients of parameters in the call are
    `size` times a rank's part, so that their average over the group is the gradient of the whole; whatever a step does
    beside the call, all ranks do alike, and its average is what each has.

    Args:
        module: the one that is called.
        group: of the ranks.
        attention: by which exchange attention sees the whole sequence.
        dim: of the tensors that the module is given, which is the sequence.
        draws: makes a context in which a rank draws random numbers of its own.

    Attributes:
        is_running: a call is under way.
        apart: keeps attention out of graphs, if the module is compiled.
        length: of this rank's part, in the newest call.
        turn: the number of that call among those of all modules; 0 before the first.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Any,
        attention: Attention,
        dim: int,
        draws: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.module, self._group, self._attention, self._dim, self._draws = module, group, attention, dim, draws
        self._size, self._rank = group.size(), group.rank()
        self._is_checked = self._is_looked_at = False
        self._modes: set[bool] = set()
        self._answer: Callable[..., Any] | None = None
        self.apart: Apart | None = None
        self.is_running, self.length, self.turn = False, 0, 0

    def __call__(self, forward: Any, args: Any, kwargs: Any) -> Any:
        """All ranks of the group. The result of the module's forward for the whole sequence."""
        if self.is_running:
            return forward(*args, **kwargs)
        self._length((args, kwargs))
        if self._answer is not None:
            return self._answer(*args, **kwargs)
        self.check(forward, args, kwargs)
        changes = self._own_changes(forward, args, kwargs)
        result = self._run(forward, args, kwargs)  # first: what keeps a tensor with a graph is refused as such
        if changes:
            raise ModuleError(
                f"{type(self.module).__name__} changes {', '.join(map(repr, changes))} in itself, and to other values "
                f"where each of {self._size} ranks has a part of the sequence: a statistic, a count or a cache of what "
                "forward sees. Return what it is made of by position, and update it in the step, after the call."
            )
        return result

    def _own_changes(self, forward: Any, args: Any, kwargs: Any) -> list[str]:
        """All ranks of the group. The attributes and buffers that a call in parts sets to other values than a whole.

        Looks at the first call of training, and of evaluation.
        """
        if self.module.training in self._modes:
            return []
        self._modes.add(self.module.training)
        random_state = random.getstate()
        try:
            with own_state.kept(self.module) as before, torch.no_grad():
                self._run(forward, args, kwargs)
                in_parts = own_state.take(self.module)
                places = self._of_all(own_state.changed(before, in_parts))
            if not places:
                return []
            with own_state.kept(self.module), torch.no_grad(), self._draws():
                self._run_whole(forward, args, kwargs)
                whole = own_state.take(self.module)
        finally:
            random.setstate(random_state)
        differing = self._of_all(own_state.differing(in_parts, whole, places, _are_close))
        return own_state.names_of(differing)

    def _of_all(self, places: set[tuple[str, str]]) -> set[tuple[str, str]]:
        found: list[Any] = [None] * self._size
        dist.all_gather_object(found, places, group=self._group)
        return set().union(*found)

    def _run_whole(self, forward: Any, args: Any, kwargs: Any) -> Any:
        self.is_running = True
        try:
            with RecordedLogs().instead_of(self.module):
                return forward(*args, **kwargs)
        finally:
            self.is_running = False

    @contextmanager
    def answering(self, answer: Callable[..., Any] | None) -> Iterator[None]:
        """A context in which something else answers a call, given the whole sequence; None: the ranks do again."""
        self._answer = answer
        try:
            yield
        finally:
            self._answer = None

    def caught(self) -> AbstractContextManager[Any]:
        """A context in which attention sees the whole sequence, as in the newest call."""
        caught = Caught(self._group, self._attention, self.length)
        return caught if self.apart is None else self.apart.around(caught)

    def _run(self, forward: Any, args: Any, kwargs: Any) -> Any:
        length = self._length((args, kwargs))
        args, kwargs = self._cut((args, kwargs), length)
        looks = torch.is_grad_enabled() and not self._is_looked_at
        before = graphs.kept(self.module.named_modules()) if looks else set()
        self.is_running, self.length, self.turn = True, length // self._size, next(_turns)
        try:
            draws = self._draws() if self.module.training else nullcontext()
            with self.caught(), draws, RecordedLogs().instead_of(self.module):
                result = forward(*args, **kwargs)
        finally:
            self.is_running = False
        if looks:
            self._is_looked_at = True
            graphs.refuse_kept(self.module.named_modules(), before)
        return tree_map(lambda leaf: self._whole(leaf, length), result)

    def _length(self, given: Any) -> int:
        """The length of the sequence: of the first tensor that has that dim."""
        for leaf in tree_flatten(given)[0]:
            if isinstance(leaf, Tensor) and leaf.ndim > self._dim:
                length = leaf.shape[self._dim]
                if length % self._size:
                    raise ModuleError(
                        f"{type(self.module).__name__} was called with a sequence of {length} (dim {self._dim} of "
                        f"shape {tuple(leaf.shape)}), which context={self._size} doesn't divide. Pad it, or choose "
                        "another size."
                    )
                return length
        raise ModuleError(
            f"{type(self.module).__name__} was called without a tensor that has the dim {self._dim}, which is the "
            "sequence under context=. Say which one is by context_dim=."
        )

    def _cut(self, given: Any, length: int) -> Any:
        leaves, form = tree_flatten(given)
        own = [
            collectives.cut(leaf, self._dim, self._group)
            if isinstance(leaf, Tensor) and leaf.ndim > self._dim and leaf.shape[self._dim] == length
            else leaf
            for leaf in leaves
        ]
        return tree_unflatten(own, form)

    def _whole(self, leaf: Any, length: int) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.ndim <= self._dim or leaf.shape[self._dim] != length // self._size:
            raise ModuleError(
                f"{type(self.module).__name__} returned a tensor of shape {tuple(leaf.shape)}, whose dim {self._dim} "
                f"isn't the {length // self._size} positions of this rank: what it was made of is unknown. Return "
                "values by position, and compute losses and means of them in the step."
            )
        return collectives.join(leaf, self._dim, self._group)

    def check(self, forward: Any, args: Any, kwargs: Any) -> None:
        """All ranks of the group. Compare one sample in parts with the same one whole, at the first call.

        A model that knows its positions from the length that it sees, or looks at neighbours by other means than
        attention, gives other values.

        Raises:
            ModuleError: the values differ.
        """
        if self._is_checked:
            return
        self._is_checked = True
        args, kwargs = tree_map(
            lambda leaf: leaf[:1] if isinstance(leaf, Tensor) and leaf.ndim > 1 else leaf, (args, kwargs)
        )
        with own_state.kept(self.module), _at_rest(self.module), torch.no_grad():
            found = tree_flatten(self._run_a_part(forward, args, kwargs))[0]
            expected = tree_flatten(self._run_whole(forward, args, kwargs))[0]
        for one, other in zip(found, expected, strict=True):
            if isinstance(one, Tensor) and not _are_close(one, other):
                raise ModuleError(
                    f"{type(self.module).__name__} computes other values where each of {self._size} ranks has a part "
                    f"of the sequence (they differ by {float((one - other).abs().max()):.2g}). Positions must be an "
                    "argument, such as position_ids, and not follow from the length that forward sees; only "
                    "scaled_dot_product_attention may look at other positions."
                )

    def _run_a_part(self, forward: Any, args: Any, kwargs: Any) -> Any:
        try:
            return self._run(forward, args, kwargs)
        except RuntimeError as error:
            error.add_note(
                f"Each of {self._size} ranks called {type(self.module).__name__} with a part of dim {self._dim}, the "
                "sequence under context=. If that is no sequence, name its dim by context_dim=, or leave context out."
            )
            raise


def computed_again(contexts: Iterable[Context]) -> AbstractContextManager[Any]:
    """All ranks of the group. A context for backward: attention that is computed again sees the whole sequence.

    Args:
        contexts: of a module; the newest call counts.
    """
    newest = max(contexts, key=lambda one: one.turn, default=None)
    return nullcontext() if newest is None or not newest.turn else newest.caught()


def check_whole_batches(module: nn.Module) -> None:
    """Refuse batch norms, which would take their statistics from a part of the sequence.

    Raises:
        ModuleError: there is one.
    """
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ModuleError(
                f"{type(part).__name__} {name!r} would take its statistics from a rank's part of the sequence under "
                "context=. Use a norm that doesn't depend on other positions, such as LayerNorm."
            )


@contextmanager
def in_parts(contexts: Sequence[Context]) -> Iterator[None]:
    """A context in which the outermost of these modules' calls are made in parts. Copies made elsewhere aren't."""
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


def _first_sample(leaf: Any) -> Any:
    return leaf[:1] if isinstance(leaf, Tensor) and leaf.ndim > 1 else leaf


@contextmanager
def _at_rest(module: nn.Module) -> Iterator[None]:
    """A context without dropout, and with values in the place of parameters that are the same everywhere."""
    training = {part: part.training for part in module.modules()}
    kept: list[tuple[Tensor, Tensor]] = []
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            own: Tensor = getattr(parameter, "_local_tensor", parameter)
            if (
                not own.is_meta
                and own.numel() > 1
                and own.is_floating_point()
                and bool((own == own.flatten()[0]).all())
            ):
                kept.append((own, own.clone()))
                own.add_(torch.randn(own.shape, generator=draws).to(own) / 8)
    module.eval()
    try:
        yield
    finally:
        for part, was in training.items():
            part.training = was
        with torch.no_grad():
            for own, before in kept:
                own.copy_(before)


def _are_close(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    tolerance = max(1e-6, 64 * torch.finfo(one.dtype).eps)
    scale = float(other.abs().max())
    return float((one - other).abs().max()) <= tolerance * max(scale, 1e-12)
