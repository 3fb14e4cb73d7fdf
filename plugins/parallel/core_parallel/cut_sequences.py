"""Calls of the model on this rank's part of a sequence, and what surrounds them."""

from __future__ import annotations

import random
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from core import ModuleError
from core.checkpoint import collect_random_state, restore_random_state
from core_parallel.context.gradient_terms import Terms
from core_parallel.context.sequence import Context, check_whole_batches, in_parts, newest_turn
from core_parallel.context.uncompiled_attention import Apart
from core_parallel.cut_modules import CutModules
from core_parallel.experts import expert_modules, uncompiled
from core_parallel.tensor import layers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from core_parallel.context.attention import Attention


class CutSequences(CutModules):
    """Runs calls of the model on a part of the sequence, along `context`."""

    _context_options: tuple[Attention, int]
    """How attention sees the whole sequence, and the dimension of tensors that is the sequence."""
    _gradient_terms: Terms | None = None
    _began = 0

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._contexts: dict[nn.Module, list[Context]] = {}
        self._undo: list[Callable[[], None]] = []

    def _refuse_uncuttable(self, module: nn.Module) -> None:
        """Refuse hooks that would see parts, and what needs whole batches where sequences are cut.

        Raises:
            ModuleError: with the name of the parameter or the module.
        """
        self._check_hooks(module)
        if self.sizes.context > 1:
            check_whole_batches(module)

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """All ranks, once a stage. The user's method, in which calls of the model see a part of the
        sequence.
        """
        method = super().step_callable(name, module)
        own = self.session.handle_of(module).module
        contexts = self._contexts_of(own, called_in(own))
        if not contexts and own not in self._blocks:
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            with layers.explained(), self._followed(own, (args, kwargs)):
                if contexts and name == "forward":
                    return contexts[0](method, args, kwargs)
                self._began = newest_turn(contexts)
                with in_parts(contexts):
                    return method(*args, **kwargs)

        return call

    def _contexts_of(self, own: nn.Module, called: Sequence[nn.Module]) -> list[Context]:
        """All ranks. The calls that see a part of the sequence, of a user's module; none without
        that axis.
        """
        if (group := self._axis("context")) is None:
            return []
        if own not in self._contexts:
            given = (group, *self._context_options, self._draw_apart, self._deciding())
            joins = "context" not in self._local_loss
            made = [Context(one, own, *given, joins=joins) for one in called]
            by_token = [*self._experts_in(own), *layers.cut_in(own)]
            with suppress(ModuleError):  # there are none
                by_token += [one.module for one in expert_modules.find(own, self._expert_plan)]
            for one in made:
                one.by_token = list(dict.fromkeys(by_token))
            self._contexts[own] = made
        return self._contexts[own]

    def _leave_out_of_graphs(
        self, module: nn.Module, called: Sequence[nn.Module], *, compiles: bool
    ) -> None:
        """Leave exchanges out of what is compiled, of sequences in attention, and of tokens around
        experts.
        """
        if not (compiles or self.session.compiles) or self.sizes.context == self.sizes.expert == 1:
            return
        for one in self._contexts_of(module, called):
            one.apart = Apart()
        self._undo.append(uncompiled.leave_out(self._experts_in(module)))

    @contextmanager
    def _draw_apart(self) -> Iterator[None]:
        """A context in which each rank of a context group draws its own numbers; what they share
        goes on afterwards.
        """
        # of Python's generator, so that torch's draws in a step are those of one device
        base = random.getrandbits(62)
        before = collect_random_state(self.accelerator, self.root_device)
        try:
            torch.manual_seed(base + self.global_rank // self.sizes.tensor)
            yield
        finally:
            restore_random_state(before, self.accelerator, self.root_device)

    def _terms(self) -> Terms | None:
        """All ranks. The gradients that are added up over a context group; None without one."""
        if self._gradient_terms is None and (group := self._axis("context")) is not None:
            self._gradient_terms = Terms(group)
        return self._gradient_terms

    def release(self) -> None:
        """All ranks; idempotent. Forget the modules."""
        super().release()
        self._contexts.clear()
        self._gradient_terms = None
        while self._undo:
            self._undo.pop()()


def called_in(user: nn.Module) -> list[nn.Module]:
    """The modules that a step may call with a sequence: the user's own, and those in it."""
    return [
        user,
        *(child for child in user.children() if next(child.parameters(), None) is not None),
    ]
