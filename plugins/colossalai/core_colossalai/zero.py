"""ZeRO 1 and 2 of Colossal-AI's LowLevelZeroPlugin: each rank steps a flat part of each parameter.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import get_gradient_edge

from core import ConfigurationError
from core_colossalai import library
from core_colossalai.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from core.strategies import LeftOutParameters


class LowLevelZeroEngine(Engine):
    """`LowLevelZeroOptimizer` around the user's optimizer, which then holds flat parts of float32.

    Put right here: masters begin as the user's weights and not as those rounded to 16 bits; what a
    loss leaves out on one rank alone is refused, where Colossal-AI would add up gradients of
    different parameters.

    Args:
        booster: with a LowLevelZeroPlugin.
        module: in float32.
        optimizer: of its parameters.
        left_out: compares what a loss leaves out with other ranks; None for one rank.
    """

    def __init__(
        self,
        booster: Any,
        module: nn.Module,
        optimizer: Optimizer,
        left_out: LeftOutParameters | None,
    ) -> None:
        self._left_out = left_out
        self._utilities = library.load("colossalai.zero.low_level._utils")
        self._is_mixed = booster.plugin.precision != "fp32"
        self._formats = {one: one.dtype for one in module.parameters()}
        self._buffers = [
            (part, name, one.dtype) for part in module.modules() for name, one in _buffers_of(part)
        ]
        before: dict[Tensor, Tensor] = {
            one: one.detach().clone() for one in module.parameters() if self._is_mixed
        }
        super().__init__(booster, module, optimizer)
        trained = self.trained
        self._names: dict[Tensor, str] = {
            one: name for name, one in module.named_parameters() if one in trained
        }
        self._frozen = {one: value for one, value in before.items() if one not in trained}
        self._set_masters(before)
        self._max_norm = self.boosted._clip_grad_norm
        # Colossal-AI saves what this gives, by the user's names
        vars(self.wrapped)["unwrap"] = self._unwrap

    @property
    def trained(self) -> set[Tensor]:
        """Parameters of the optimizer that ZeRO steps: those that weren't frozen when it was set
        up.
        """
        held = self.boosted.working_to_master_param
        return {one for group in self.given_groups for one in group if id(one) in held}

    def _unwrap(self, unwrap_peft: bool = True) -> nn.Module:
        return self.module

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """All ranks. Compute gradients, of which each rank keeps the averages of its parts.

        Raises:
            ConfigurationError: a parameter was frozen since the set-up, and its part would be
                stepped all the same.
        """
        if frozen := [name for one, name in self._names.items() if not one.requires_grad]:
            raise ConfigurationError(
                f"Parameters were frozen within the run, {frozen[0]!r} among them, and ZeRO steps "
                "all that it has cut at the set-up. Freeze them before that, as in the module's "
                "__init__ or configure_model; or use a strategy that notices, such as 'ddp' or "
                "'fsdp'."
            )
        if self._left_out is not None and loss.requires_grad:
            loss.register_hook(self._check_graph)
        super().backward(loss, **kwargs)

    def _check_graph(self, gradient: Tensor) -> None:
        will_run = torch._C._will_engine_execute_node
        with torch.enable_grad():
            names = [
                name
                for one, name in self._names.items()
                if not will_run(get_gradient_edge(one).node)
            ]
        assert self._left_out is not None, "there are other ranks"
        self._left_out.check(names)

    # gradients ------------------------------------------------------------------------------------

    def scale(self, factor: float) -> None:
        """All ranks. Multiply the gradients of this rank's parts."""
        for gradient in self._gradients():
            gradient.mul_(factor)

    def _gradients(self) -> Iterator[Tensor]:
        zero = self.boosted
        for group in range(zero.num_param_groups):
            for store in zero.pg_to_grad_store.values():
                yield from store.get_working_grads_by_group_id(group)

    def clip(self, max_norm: float) -> Tensor:
        """All ranks. Make the next step clip; the norm before that, a scalar tensor."""
        zero = self.boosted
        zero._clip_grad_norm = max_norm
        norms = [
            zero._compute_grad_norm(store.torch_pg, store.get_working_grads_by_group_id(group))
            for group in range(zero.num_param_groups)
            for store in zero.pg_to_grad_store.values()
        ]
        mixin = zero.mixed_precision_mixin
        scale = mixin.loss_scale if hasattr(mixin, "loss_scale") else 1.0
        return torch.tensor(norms).square().sum().sqrt() / scale

    def step(self) -> bool:
        """All ranks. Step the parts of this rank, and gather the parameters."""
        try:
            return super().step()
        finally:
            self.boosted._clip_grad_norm = self._max_norm

    # state ----------------------------------------------------------------------------------------

    def module_values(self) -> dict[Tensor, Tensor]:
        """All ranks. Masters of trained parameters, and the others as they were given; nothing in
        float32.
        """
        if not self._is_mixed:
            return {}
        values = {one: self.gather(one, self._master(one)) for one in self._names}
        return values | self._frozen

    def load_values(self, values: Mapping[Tensor, Tensor]) -> None:
        """All ranks. Copy this rank's parts of values; the module has them already, in its own
        format.
        """
        self._set_masters({one: value for one, value in values.items() if one in self._names})
        self._frozen.update({one: value for one, value in values.items() if one in self._frozen})

    def _set_masters(self, values: Mapping[Tensor, Tensor]) -> None:
        for one, value in values.items():
            if one in self._names:
                self._master(one).copy_(self.part(one, value))

    def _master(self, parameter: Tensor) -> Tensor:
        master: Tensor = self.boosted.working_to_master_param[id(parameter)]
        return master

    def part(self, parameter: Tensor, value: Tensor) -> Tensor:
        """This rank's part of a tensor of a parameter's shape, flat and padded."""
        group = self.boosted.param_to_pg[parameter]
        flat = value.detach().flatten()
        flat = torch.nn.functional.pad(flat, [0, self.boosted.get_param_padding_size(parameter)])
        part: Tensor = flat.chunk(self._utilities.get_nd_world_size(group))[
            self._utilities.get_nd_rank(group)
        ]
        return part

    def gather(self, parameter: Tensor, part: Tensor) -> Tensor:
        """All ranks. The whole tensor of a parameter's shape, of which this rank has a part."""
        group = self.boosted.param_to_pg[parameter]
        size = part.numel() * self._utilities.get_nd_world_size(group)
        total = torch.empty(size, dtype=part.dtype, device=parameter.device)
        self._utilities.all_gather_into_flat_tensor_nd(
            total, part.detach().to(parameter.device).flatten(), group
        )
        return total[: parameter.numel()].view(parameter.shape)

    def whole_entries(self, state: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
        """All ranks. An optimizer's state by positions, with whole tensors in the place of
        parts.
        """
        return {index: self._convert(index, entry, self.gather) for index, entry in state.items()}

    def own_entries(self, state: Mapping[Any, Mapping[str, Any]]) -> dict[Any, dict[str, Any]]:
        """An optimizer's state by positions, with this rank's parts in the place of whole
        tensors.
        """
        return {index: self._convert(index, entry, self.part) for index, entry in state.items()}

    def _convert(self, index: int, entry: Mapping[str, Any], convert: Any) -> dict[str, Any]:
        parameter = [one for group in self.given_groups for one in group][index]
        return {
            key: convert(parameter, value)
            if isinstance(value, torch.Tensor) and value.ndim
            else value
            for key, value in entry.items()
        }

    @contextmanager
    def all_parameters(self) -> Iterator[None]:
        """A context in which the optimizer's groups hold all that was given, with parts where there
        are some.
        """
        groups = self.optimizer.param_groups
        parts = [group["params"] for group in groups]
        held = self.boosted.working_to_master_param
        for group, given in zip(groups, self.given_groups, strict=True):
            group["params"] = [held.get(id(one), one) for one in given]
        try:
            yield
        finally:
            for group, before in zip(self.optimizer.param_groups, parts, strict=True):
                group["params"] = before

    # end ------------------------------------------------------------------------------------------

    def close(self, *, is_whole: bool) -> None:
        """All ranks, unless `is_whole` is False, after an exception. Give module and optimizer back
        to the user.
        """
        super().close(is_whole=is_whole)
        vars(self.wrapped).pop("unwrap", None)
        values = self.module_values() if is_whole else {}
        for handle in self.boosted.grad_handles:
            handle.remove()
        with torch.no_grad():
            for one, dtype in self._formats.items():
                one.data = values.get(one, one.data).detach().to(dtype).clone()
            # others by now: to convert a module replaces them
            for part, name, dtype in self._buffers:
                part._buffers[name] = part.get_buffer(name).to(dtype)
        for group, given in zip(self.optimizer.param_groups, self.given_groups, strict=True):
            group["params"] = given
        self.optimizer.state.clear()


def _buffers_of(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return part.named_buffers(recurse=False, remove_duplicate=False)
