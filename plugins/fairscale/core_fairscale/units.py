"""A module in FairScale's FullyShardedDataParallel, in one unit or several, each gathered and freed
as a whole.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from fairscale.nn.data_parallel import FullyShardedDataParallel, TrainingState
from fairscale.nn.wrap import auto_wrap, default_auto_wrap_policy, enable_wrap

from core import ModuleError
from core.strategies import MethodRouter
from core_fairscale import flat_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor, nn


class FlatUnits:
    """The units of a user's module, which keeps its parameters: they hold flat parts, and whole
    values in a forward.

    Put right here: what FairScale leaves gathered after a backward or a forward is let go, since it
    would be old after a step or a load; a module has its own names and values back when training
    has ended.

    Attributes:
        module: the user's own, in which units stand in the place of layers while it is wrapped.
        root: FairScale's wrapper around all.
        router: runs any method of the module within the forward of `root`.
    """

    def __init__(self, module: nn.Module, *, min_num_params: int | None, **settings: Any) -> None:
        """All ranks. Cut the parameters, in place.

        Args:
            module: on its device, the same on all ranks.
            min_num_params: a layer with so many parameters of its own is a unit; None makes one
                unit of all.
            settings: of FairScale's wrapper.
        """
        self.module = module
        self._names: dict[Any, str] = {one: name for name, one in module.named_parameters()}
        if min_num_params is not None:
            policy = partial(default_auto_wrap_policy, min_num_params=min_num_params)
            with enable_wrap(wrapper_cls=FullyShardedDataParallel, **settings):
                for name, child in list(module.named_children()):
                    module.add_module(name, auto_wrap(child, policy))
        self._places = [
            (part, name, child)
            for part in module.modules()
            for name, child in part._modules.items()
            if isinstance(child, FullyShardedDataParallel)
        ]
        self.router = MethodRouter(module)
        self.root = FullyShardedDataParallel(self.router, **settings)
        self._all = [self.root, *(unit for _, _, unit in self._places)]
        for unit in self._all:  # the outermost first, which marks the others as inner ones
            unit._lazy_init()

    def let_go(self) -> None:
        """Free what is gathered: parameters hold this rank's parts."""
        for unit in self._all:
            unit._free_full_params()
            unit._use_fp32_param_shard()

    def set_gradients_aside(self) -> None:
        """Before a backward, keep gradients of one element where FairScale adds what it reduces
        next to them.

        It does so for all others. A part of that shape it takes for a whole gradient that is still
        to be averaged: a part of the mean would be averaged again.
        """
        for unit in self._all:
            for one in unit.params:
                # What isn't cut, on one rank, it adds to the gradient itself.
                if one._is_sharded and one.grad is not None and one.grad.shape == one._orig_size:
                    one._saved_grad_shard, one.grad = one.grad.data, None

    @contextmanager
    def whole(self, *, keeps_changes: bool) -> Iterator[None]:
        """All ranks. A context in which the module has its own names, and parameters hold whole
        values.
        """
        self.let_go()
        with self.root.summon_full_params(volatile=not keeps_changes), self.own_layers():
            yield

    @contextmanager
    def own_layers(self) -> Iterator[None]:
        """A context in which the module has its own layers, and so its own names, in the place of
        units.
        """
        self._put_layers_back()
        try:
            yield
        finally:
            for part, name, unit in self._places:
                part._modules[name] = unit

    def _put_layers_back(self) -> None:
        for part, name, unit in self._places:
            part._modules[name] = unit.module.module

    def left_out(self) -> list[str]:
        """In a backward: names of trained parameters that it will not reach.

        Raises:
            ModuleError: it reaches none of a unit's, for which FairScale would wait.
        """
        will_run = torch._C._will_engine_execute_node
        trained = [[one for one in unit.params if one.requires_grad] for unit in self._all]
        # None before the first forward.
        hooks = {one: getattr(one, "_shard_bwd_hook", None) for unit in trained for one in unit}
        idle = {one for one, hook in hooks.items() if hook is None or not will_run(hook[0])}
        for unit in trained:
            if unit and idle.issuperset(unit):
                raise ModuleError(
                    "The loss depends on no parameter of one unit of FairScale's, "
                    f"{self._names[unit[0]]!r} and those that are gathered with it. Let it, by "
                    "`loss + 0 * layer(inputs).sum()`, freeze them, or use strategy='fsdp', where "
                    "a unit may be left out."
                )
        return [name for one, name in self._names.items() if one in idle]

    def close(self, *, is_whole: bool) -> None:
        """All ranks, unless `is_whole` is False, after an exception: then parameters stay in flat
        parts.

        So they do after a forward or backward that has failed, which FairScale's wrapper doesn't
        get over.
        """
        if is_whole and all(unit.training_state is TrainingState.IDLE for unit in self._all):
            with self.whole(keeps_changes=False):
                values: Mapping[Any, Tensor] = {one: one.detach().clone() for one in self._names}
            for one, value in values.items():
                flat_parts.forget(one, value)
        self._put_layers_back()
        # A cache in FairScale holds the buckets for ever, and their groups with their sockets.
        self.root._reducer.buckets.clear()
        for unit in self._all:
            unit.process_group = unit.process_group_reduce_scatter = None

    def routed(self, name: str, replacement: Callable[..., Any] | None) -> Callable[..., Any]:
        """A method of the module within the forward of all, with parameters gathered."""
        return self.router.route(self.root, name, replacement=replacement)
