"""The first weights of a sharded module: the same as on one device, and never all of them on one
rank.

A module that was built on the meta device has shapes and no values. Its submodules are filled one
after the other, each by its own `reset_parameters()` and then by the `_init_weights` of a model
around it, children before their parent: every rank draws the whole values of one submodule, keeps
its shard, and lets go of the rest. That draws the same random numbers in the same order as building
the module on one device does, if constructors only build children and call these, as those of
torch's layers and of transformers do.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from core import ModuleError
from core.checkpoint import gather_whole
from core_fsdp import first_draws
from core_fsdp.shards import fill_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core import Strategy


class InitialWeights:
    """The values of a module's tensors after sharding. Made before, by all ranks; `fill` comes
    after.

    Three cases: built everywhere, and rank 0's values go to all before they are cut into shards;
    built on meta everywhere, and `fill` draws them; built on rank 0 and on meta elsewhere, and
    `fill` sends rank 0's, one at a time.

    Attributes:
        lacking: the tensors to which nothing gave values.
    """

    def __init__(self, module: nn.Module, strategy: Strategy, *, synchronizes: bool) -> None:
        self.module = module
        self.strategy = strategy
        self.empty = [child for child in first_draws.children_first(module) if _is_on_meta(child)]
        # What is drawn in one format and then converted differs from what is drawn in the other.
        self._formats = {
            child: {name: each.dtype for name, each in _own_parameters(child)}
            for child in self.empty
        }
        self.is_empty_everywhere = strategy.reduce_boolean_decision(bool(self.empty), all=True)
        self.is_empty_somewhere = strategy.reduce_boolean_decision(bool(self.empty), all=False)
        self.lacking: list[first_draws.Lacking] = []
        self._of_rank_zero: dict[str, Tensor] = {}
        if self.is_empty_somewhere and not self.is_empty_everywhere:
            self._check_rank_zero(synchronizes)
            self._of_rank_zero = dict(_named_tensors(module)) if strategy.global_rank == 0 else {}
        elif synchronizes:
            self._send_all()

    def _check_rank_zero(self, synchronizes: bool) -> None:
        name = type(self.module).__name__
        if self.strategy.broadcast(bool(self.empty)):
            raise ModuleError(
                f"{name} was built on the meta device on rank 0 and with values on others. "
                "Build it on meta everywhere, or with values on rank 0 at least."
            )
        if not synchronizes:
            raise ModuleError(
                f"{name} has values on some ranks only, and sync_module_states=False leaves the "
                "others without. Pass sync_module_states=True, which sends those of rank 0."
            )

    def _send_all(self) -> None:
        """Send rank 0's values of what has some, which are all or those that weren't built on
        meta.
        """
        own = {name: tensor for name, tensor in _named_tensors(self.module) if not tensor.is_meta}
        if not self.strategy.reduce_boolean_decision([*own] == self.strategy.broadcast([*own])):
            raise ModuleError(
                f"Ranks have built different parts of {type(self.module).__name__} on the meta "
                "device. Build it alike on all of them."
            )
        for tensor in own.values():
            self._send(tensor)

    def fill(self, parameter_device: torch.device) -> None:
        """All ranks, after sharding. Give memory to what is on meta, shards only, and values to
        it.
        """
        if not self.is_empty_somewhere:
            return
        _allocate(self.module, parameter_device, self.strategy.root_device)
        if self.is_empty_everywhere:
            with _random_state_of_rank_zero(self.strategy):
                self._draw()
        else:
            self._receive()

    def _draw(self) -> None:
        done: tuple[set[int], set[int]] = set(), set()
        unknown: list[nn.Module] = []
        for part, draw, is_second in first_draws.draws(self.module, set(self.empty), unknown):
            own = done[is_second]
            with _whole_parameters(
                part, self._formats[part], own, self.strategy.root_device, keeps=is_second
            ):
                draw()
        self.lacking = first_draws.lacking(self.module, unknown)

    def _receive(self) -> None:
        device = self.strategy.root_device
        for name, tensor in _named_tensors(self.module):
            source = self._of_rank_zero.pop(name, None)
            whole = (
                source.detach().to(device) if source is not None else _whole_like(tensor, device)
            )
            dist.broadcast(whole, src=0)
            fill_from(whole, tensor)

    def _send(self, tensor: Tensor) -> None:
        """Send rank 0's values to the tensors of all ranks; if sharded already, to the ranks with
        the same shard.
        """
        group = None
        source = 0
        local = tensor.detach()
        if isinstance(local, DTensor):
            assert self.strategy.device_mesh is not None, "who cuts tensors has a mesh"
            group = self.strategy.device_mesh["data_parallel"].get_group()
            source = dist.get_global_rank(group, 0)
            local = local.to_local()
        sent = local.to(self.strategy.root_device).contiguous()
        dist.broadcast(sent, src=source, group=group)
        local.copy_(sent)


def _own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return (
        (name, parameter) for name, parameter in module._parameters.items() if parameter is not None
    )


def _is_on_meta(module: nn.Module) -> bool:
    """True if a tensor of its own has no values."""
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(tensor.is_meta for tensor in own)


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _whole_like(tensor: Tensor, device: torch.device) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)


def _allocate(
    module: nn.Module, parameter_device: torch.device, buffer_device: torch.device
) -> None:
    def allocate(tensor: Tensor) -> Tensor:
        device = parameter_device if isinstance(tensor, nn.Parameter) else buffer_device
        return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor

    # Swapping keeps the identity of parameters, and so what ties two of them together.
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with _without_whole_ones(module):
            module._apply(allocate)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)


@contextmanager
def _without_whole_ones(module: nn.Module) -> Iterator[None]:
    """A context without the parameters that have values and aren't in shards: someone may refer to
    them by now.
    """
    kept: list[tuple[nn.Module, str, nn.Parameter]] = []
    for part in module.modules():
        for name, parameter in _own_parameters(part):
            if not parameter.is_meta and not isinstance(parameter, DTensor):
                kept.append((part, name, parameter))
    for part, name, _ in kept:
        part._parameters[name] = None
    try:
        yield
    finally:
        for part, name, parameter in kept:
            part._parameters[name] = parameter


@contextmanager
def _whole_parameters(
    module: nn.Module,
    formats: dict[str, torch.dtype],
    done: set[int],
    device: torch.device,
    *,
    keeps: bool,
) -> Iterator[None]:
    """All ranks. The module's own parameters as whole ones; what they hold at the end is cut into
    the shards.

    With `keeps` they begin with their values, of which a draw may leave some as they are.

    A parameter that two modules share keeps what the first has given it, and the second draws all
    the same: so it happens where the second one's own is replaced by the first one's.
    """
    shards = dict(_own_parameters(module))
    for name, shard in shards.items():
        whole = torch.empty(shard.shape, dtype=formats[name], device=device)
        if keeps:
            whole.copy_(
                gather_whole(shard.detach()) if isinstance(shard, DTensor) else shard.detach()
            )
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
    """A context in which all ranks draw what rank 0 draws; afterwards each has its own random state
    back.
    """
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
