"""State in the canonical form, from and to what ZeRO has made of it.

At stage 3 each parameter is cut into equal ranges of its elements, one a rank. At stages 1 and 2
parameters are whole; of each group, laid out in a row, every rank has an equal part, with a master
copy and what the optimizer keeps for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core import CheckpointError, ShardedLeaf
from core_deepspeed.flat_ranges import FlatRange, fill

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from core_deepspeed.engine import ZeroEngine

_STEP = "step"


class EngineState:
    """One engine's part of the state, parameter by parameter. Made anew for each use: memory may
    move.
    """

    def __init__(self, engine: ZeroEngine, rank: int) -> None:
        self.engine, self.zero = engine, engine.zero
        self.rank = rank
        self.ranges = {
            id(parameter): self._range(parameter) for parameter in engine.module.parameters()
        }

    def _range(self, parameter: Any) -> FlatRange | None:
        """This rank's part of a parameter; None for one that is whole, and has nothing besides."""
        # Stage 3 marks each parameter that it has cut.
        if hasattr(parameter, "ds_id"):
            return self._range_of_stage_3(parameter)
        # Stages 1 and 2: DeepSpeed maps a parameter ("lp") to its elements in the flat master
        # ("hp") on the rank that holds some of them, and leaves it without a mapping on the others.
        mapping = getattr(parameter, "_hp_mapping", None)
        trained = self.engine.group_of.get(parameter)
        if trained is None:
            return None
        shape, flats = tuple(parameter.shape), self.zero.single_partition_of_fp32_groups
        if mapping is None:
            return FlatRange(shape, 0, 0, flats[trained], 0, trained)
        here, there = mapping.lp_fragment_address, mapping.get_hp_fragment_address()
        return FlatRange(shape, here.start, here.numel, flats[trained], there.start, trained)

    def _range_of_stage_3(self, parameter: Any) -> FlatRange:
        length = parameter.partition_numel()
        start = length * self.rank
        # Parts are of equal length: the last ones hold padding, or nothing else.
        size = max(0, min(length, parameter.ds_numel - start))
        shape = tuple(parameter.ds_shape)
        if parameter not in self.engine.group_of:
            return FlatRange(shape, start, size, parameter.ds_tensor, 0)
        # The master is on a disk, and this a copy of it, for the weights alone: without a group it
        # is never loaded.
        if self._is_swapped:
            return FlatRange(
                shape, start, size, self.zero.get_local_fp32_param(parameter).clone(), 0
            )
        group, offset, _ = self.zero.grad_position[self.zero.get_param_id(parameter)]
        return FlatRange(
            shape, start, size, self.zero.fp32_partitioned_groups_flat[group], offset, group
        )

    @property
    def _is_swapped(self) -> bool:
        """True if masters and moments are on NVMe, from where they come one by one, and go back by
        other ways.
        """
        return bool(getattr(self.zero, "swap_optimizer", False))

    def _refuse_swapped(self) -> None:
        if self._is_swapped:
            raise CheckpointError(
                "The optimizer's state is on NVMe, where only DeepSpeed's own layout reaches it: "
                "use DeepSpeedStrategy(..., deepspeed_checkpoint='native'), or save weights only."
            )

    # modules --------------------------------------------------------------------------------------

    def parameter(self, parameter: Tensor) -> Tensor | ShardedLeaf:
        """A parameter's value: its master copy, cut, or the parameter itself if that is whole and
        as exact.
        """
        own = self.ranges[id(parameter)]
        if (
            own is None
            or own.flat is None
            or not (self.engine.stage == 3 or self._has_master(parameter))
        ):
            return parameter.detach()
        return own.leaf(own.flat, own.flat.dtype)

    def _has_master(self, parameter: Tensor) -> bool:
        own = self.ranges[id(parameter)]
        return own is not None and own.flat is not None and own.flat.dtype != parameter.dtype

    def load_parameter(self, name: str, parameter: Tensor, saved: Any) -> None:
        """Restore a value, whole or in the same parts.

        Raises:
            CheckpointError: it has another shape, or its master is on NVMe.
        """
        self._refuse_swapped()
        target = self.parameter(parameter)
        check_shape(self.engine.module, name, saved, target)
        if isinstance(target, ShardedLeaf):
            fill(target, saved)
        else:
            with torch.no_grad():
                target.copy_(saved)

    def refresh(self) -> None:
        """All ranks. Bring masters and the computing parameters into agreement, after parameters
        were loaded.
        """
        if self.engine.stage == 3:
            self._refresh_stage_3()
        elif self.engine.optimizer is not None:
            # With masters they were loaded, and the computing parameters follow; else it is the
            # other way round, and the flat tensors that the optimizer steps follow the parameters.
            if any(self._has_master(parameter) for parameter in self.engine.module.parameters()):
                self.zero.update_lp_params()
            else:
                self.zero.refresh_fp32_params()

    def _refresh_stage_3(self) -> None:
        with torch.no_grad():
            for parameter in self.engine.module.parameters():
                own = self.ranges[id(parameter)]
                if own is not None and own.flat is not None and own.group is not None and own.size:
                    parameter.ds_tensor.view(-1).narrow(0, 0, own.size).copy_(own.of(own.flat))  # type: ignore[attr-defined]
        # Gathered ones would keep their old values: an evaluation leaves some behind.
        getattr(self.zero, "parameter_offload", self.zero).partition_all_parameters()
        if persistent := self.zero.persistent_parameters:  # small ones, which stay gathered
            persistent[0].all_gather(persistent)

    # optimizers -----------------------------------------------------------------------------------

    def optimizer_entries(self, names: Mapping[int, str]) -> dict[str, dict[str, Any]]:
        """The optimizer's state, by names of parameters.

        Raises:
            CheckpointError: it is on NVMe.
        """
        self._refuse_swapped()
        entries = {}
        for parameter, own in self._trained():
            kept = self.zero.optimizer.state.get(own.flat, {})
            if kept:
                entries[names[id(parameter)]] = {
                    key: _canonical(key, value, own) for key, value in kept.items()
                }
        return entries

    def optimizer_targets(
        self, described: Mapping[str, Any], names: Mapping[int, str]
    ) -> dict[str, dict[str, Any]]:
        """The targets of saved entries: the optimizer's own memory, which is made where it isn't
        there yet.
        """
        return {
            name: {
                key: own.leaf(self._kept(own, key), own.flat.dtype)
                for key in _elementwise(described[name], own)
            }
            for parameter, own in self._trained()
            if (name := names[id(parameter)]) in described and own.flat is not None
        }

    def load_optimizer(self, saved: Mapping[str, Any], names: Mapping[int, str]) -> None:
        """Restore entries, whole or in the same parts."""
        self._refuse_swapped()
        counts: dict[int, dict[str, list[Any]]] = {}
        for parameter, own in self._trained():
            entry = saved.get(names[id(parameter)], {})
            parts = _elementwise(entry, own)
            for key in parts:
                holder = self._kept(own, key)
                fill(own.leaf(holder, holder.dtype), entry[key])
            # What has no value for each element, such as a count of steps, is kept once for all
            # parameters in a flat tensor.
            for key in entry.keys() - parts:
                counts.setdefault(id(own.flat), {}).setdefault(key, []).append(entry[key])
        for flat in {id(own.flat): own.flat for _, own in self._trained()}.values():
            state = self.zero.optimizer.state[flat]
            state.update(
                {key: self._common(values) for key, values in counts.get(id(flat), {}).items()}
            )

    def _trained(self) -> Iterator[tuple[Tensor, FlatRange]]:
        for group in self.engine.groups:
            for parameter in group:
                own = self.ranges[id(parameter)]
                if own is not None and own.group is not None:
                    yield parameter, own

    def _kept(self, own: FlatRange, key: str) -> Tensor:
        """The optimizer's state under a name for a flat tensor."""
        assert own.flat is not None, "trained parameters have flat ones"
        state = self.zero.optimizer.state[own.flat]
        if key not in state:
            state[key] = torch.zeros_like(own.flat, requires_grad=False)
        kept: Tensor = state[key]
        return kept

    def _common(self, values: list[Any]) -> Any:
        """One value for all parameters that are in a row: of step counts the largest."""
        if not isinstance(values[0], Tensor):
            return values[0]
        largest = max(values, key=float)
        # DeepSpeed's own optimizers count in an int, torch's in a tensor.
        counts_in_int = type(self.zero.optimizer).__module__.startswith("deepspeed.")
        return int(largest) if counts_in_int else largest.clone()


def check_shape(module: nn.Module, name: str, saved: Any, target: Tensor | ShardedLeaf) -> None:
    """Check that a saved parameter has the shape that it has here.

    Raises:
        CheckpointError: it has another.
    """
    if (found := _shape(saved)) != (expected := _shape(target)):
        raise CheckpointError(
            f"The checkpoint does not fit {type(module).__name__}.\n"
            f"of another shape: {name!r}, {found} saved and {expected} here"
        )


def _canonical(key: str, value: Any, own: FlatRange) -> Any:
    if (
        isinstance(value, Tensor)
        and value.dim()
        and own.flat is not None
        and value.numel() == own.flat.numel()
    ):
        return own.leaf(value, value.dtype)
    if key == _STEP and not isinstance(value, Tensor):
        return torch.tensor(float(value))
    # torch's optimizers count the steps of each parameter in place.
    return value.clone() if isinstance(value, Tensor) else value


def _elementwise(entry: Mapping[str, Any], own: FlatRange) -> list[str]:
    """Names of what has a value for each element of the parameter."""
    return [key for key, value in entry.items() if key != _STEP and _shape(value) == own.shape]


def _shape(value: Any) -> tuple[int, ...] | None:
    shape = value.global_shape if isinstance(value, ShardedLeaf) else getattr(value, "shape", None)
    return tuple(shape) if shape is not None else None
