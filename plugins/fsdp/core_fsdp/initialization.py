"""The first weights of a sharded module: the same as on one device, and never all of them on one rank.

A module that was built on the meta device has shapes and no values. Its submodules are filled one after the other, each
by its own `reset_parameters()`, children before their parent: every rank draws the whole values of one submodule, keeps
its shard, and lets go of the rest. That draws the same random numbers in the same order as building the module on one
device does, if constructors only build children and call `reset_parameters()`, as those of torch's layers do.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from core import ModuleError
from core_fsdp.shards import fill_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from core import Strategy


class InitialWeights:
    """The values of a module's tensors after sharding. Made before, by all ranks; `fill` comes after.

    Three cases: built everywhere, and rank 0's values go to all before they are cut into shards; built on meta
    everywhere, and `fill` draws them; built on rank 0 and on meta elsewhere, and `fill` sends rank 0's, one at a time.
    """

    def __init__(self, module: nn.Module, strategy: Strategy, *, synchronizes: bool) -> None:
        self.module, self.strategy = module, strategy
        self.empty = [child for child in _children_first(module) if _is_on_meta(child)]
        # What is drawn in one format and then converted differs from what is drawn in the other.
        self._formats = {child: {name: each.dtype for name, each in _own_parameters(child)} for child in self.empty}
        self.is_empty_everywhere = strategy.reduce_boolean_decision(bool(self.empty), all=True)
        self.is_empty_somewhere = strategy.reduce_boolean_decision(bool(self.empty), all=False)
        self._of_rank_zero: dict[str, Tensor] = {}
        if self.is_empty_somewhere and not self.is_empty_everywhere:
            self._check_rank_zero(synchronizes)
            self._of_rank_zero = dict(_named_tensors(module)) if strategy.global_rank == 0 else {}
        elif synchronizes and not self.is_empty_somewhere:
            for _, tensor in _named_tensors(module):
                self._send(tensor)

    def _check_rank_zero(self, synchronizes: bool) -> None:
        name = type(self.module).__name__
        if self.strategy.broadcast(bool(self.empty)):
            raise ModuleError(
                f"{name} was built on the meta device on rank 0 and with values on others. "
                "Build it on meta everywhere, or with values on rank 0 at least."
            )
        if not synchronizes:
            raise ModuleError(
                f"{name} has values on some ranks only, and sync_module_states=False leaves the others without. "
                "Pass sync_module_states=True, which sends those of rank 0."
            )

    def fill(self, parameter_device: torch.device) -> None:
        """All ranks, after sharding. Give memory to what is on meta, shards only, and values to it."""
        if not self.is_empty_somewhere:
            return
        _allocate(self.module, parameter_device, self.strategy.root_device)
        if self.is_empty_everywhere:
            with _random_state_of_rank_zero(self.strategy):
                self._draw()
        else:
            self._receive()

    def _draw(self) -> None:
        done: set[int] = set()
        unknown = []
        for part in self.empty:
            reset = _reset_method(part)
            if reset is None:
                unknown.append(part)
                reset = _fill_with_nan(part)
            with _whole_parameters(part, self._formats[part], done, self.strategy.root_device):
                reset()
        if unknown:
            self._warn_of(unknown)

    def _warn_of(self, unknown: list[nn.Module]) -> None:
        names = {part: name or type(part).__name__ for name, part in self.module.named_modules()}
        warnings.warn(
            f"{len(unknown)} submodules were built on the meta device and have no reset_parameters() that could give "
            f"them values: {', '.join(names[part] for part in unknown[:8])}. They hold NaN until a checkpoint is "
            "loaded.",
            stacklevel=2,
        )

    def _receive(self) -> None:
        device = self.strategy.root_device
        for name, tensor in _named_tensors(self.module):
            source = self._of_rank_zero.pop(name, None)
            whole = source.detach().to(device) if source is not None else _whole_like(tensor, device)
            dist.broadcast(whole, src=0)
            fill_from(whole, tensor)

    def _send(self, tensor: Tensor) -> None:
        """Send rank 0's values to the tensors of all ranks; if sharded already, to the ranks with the same shard."""
        group, source = None, 0
        local = tensor.detach()
        if isinstance(local, DTensor):
            assert self.strategy.device_mesh is not None, "who cuts tensors has a mesh"
            group = self.strategy.device_mesh["data_parallel"].get_group()
            source = dist.get_global_rank(group, 0)
            local = local.to_local()
        sent = local.to(self.strategy.root_device).contiguous()
        dist.broadcast(sent, src=source, group=group)
        local.copy_(sent)


def _children_first(module: nn.Module) -> Iterable[nn.Module]:
    found: list[nn.Module] = []
    module.apply(found.append)
    return dict.fromkeys(found)  # once each, also with several parents


def _own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in module._parameters.items() if parameter is not None)


def _is_on_meta(module: nn.Module) -> bool:
    """True if a tensor of its own has no values."""
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(tensor.is_meta for tensor in own)


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _whole_like(tensor: Tensor, device: torch.device) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)


def _allocate(module: nn.Module, parameter_device: torch.device, buffer_device: torch.device) -> None:
    def allocate(tensor: Tensor) -> Tensor:
        device = parameter_device if isinstance(tensor, nn.Parameter) else buffer_device
        return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor

    # Swapping keeps the identity of parameters, and so what ties two of them together.
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        module._apply(allocate)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)


def _reset_method(module: nn.Module) -> Callable[[], Any] | None:
    for name in ("reset_parameters", "_reset_parameters"):  # the second is that of nn.MultiheadAttention
        if callable(method := getattr(module, name, None)):
            return method  # type: ignore[no-any-return]
    return None


def _fill_with_nan(module: nn.Module) -> Callable[[], None]:
    def fill() -> None:
        with torch.no_grad():
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                tensor.fill_(float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0)

    return fill


@contextmanager
def _whole_parameters(
    module: nn.Module, formats: dict[str, torch.dtype], done: set[int], device: torch.device
) -> Iterator[None]:
    """The module's own parameters as whole ones; what they hold at the end is cut into the shards.

    A parameter that two modules share keeps what the first has given it, and the second draws all the same: so it
    happens where the second one's own is replaced by the first one's.
    """
    shards = dict(_own_parameters(module))
    for name, shard in shards.items():
        whole = torch.empty(shard.shape, dtype=formats[name], device=device)
        module._parameters[name] = nn.Parameter(whole, requires_grad=shard.requires_grad)
    try:
        yield
        for name, shard in shards.items():
            if id(shard) not in done:
                fill_from(module._parameters[name].detach(), shard)  # type: ignore[union-attr]
                done.add(id(shard))
    finally:
        module._parameters.update(shards)


@contextmanager
def _random_state_of_rank_zero(strategy: Strategy) -> Iterator[None]:
    """A context in which all ranks draw what rank 0 draws; afterwards each has its own random state back."""
    device = strategy.root_device
    generators: list[Any] = [torch]
    if device.type != "cpu":
        generators.append(torch.get_device_module(device))
    mine = [generator.get_rng_state() for generator in generators]
    common = [strategy.broadcast(state).cpu() for state in mine]
    for generator, state in zip(generators, common, strict=True):
        generator.set_rng_state(state)
    yield
    for generator, before, state in zip(generators, mine, common, strict=True):
        # Rank 0, and ranks in the same state as it, go on from what was drawn, as on one device.
        if not torch.equal(before, state):
            generator.set_rng_state(before)
