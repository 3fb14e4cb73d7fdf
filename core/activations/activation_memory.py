"""The arguments by which a user has activations computed again in backward, or kept for it in the
memory of the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.activations.saved_activations import save_activations
from core.contract import Capability, ConfigurationError, UnsupportedError
from core.strategies import find_units

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.contract import Strategy

_LISTS = (list, tuple, set, frozenset)
_FORMS = (
    "'units', layer classes or names as [Block], a selective policy of torch's (a function (ctx, "
    "op, *args, **kwargs) -> CheckpointPolicy, or a list of operations such as "
    "torch.ops.aten.mm.default to keep), or {'units': [Block], 'policy': ...}"
)


class ActivationMemory:
    """The arguments `activation_checkpointing` and `activation_offload` of Trainer and Fabric.

    Args:
        checkpointing: which units are computed again in backward, or by which policy; None for
            none.
        offload: let what the units keep for backward wait in the memory of the CPU, on devices that
            have their own.

    Raises:
        ConfigurationError: an argument of no known form.
    """

    def __init__(self, checkpointing: Any = None, offload: bool = False) -> None:
        if not isinstance(offload, bool):
            raise ConfigurationError(f"activation_offload={offload!r}: expected True or False.")
        self.offload = offload
        self.is_checkpointing = checkpointing is not None and checkpointing is not False
        self.listed: Any = None
        self.policy: object = None
        self._asked_by = "activation_offload=True"
        if self.is_checkpointing:
            self.listed, self.policy = _parse(checkpointing)
            self._asked_by = "activation_checkpointing='units'"

    def check(self, strategy: Strategy) -> None:
        """Main process. Refuse a strategy that can't have it, or was passed an option of its own
        for it.

        Raises:
            ConfigurationError: both say what becomes of activations.
            UnsupportedError: the strategy runs a compiled program.
        """
        name = type(strategy).__name__
        if Capability.COMPILED_STEP in strategy.capabilities:
            raise UnsupportedError(
                f"{self._asked_by}: {name} runs forward and backward as one compiled program, "
                "which decides itself what to keep. Leave it out, or use another strategy.",
                capability=Capability.COMPILED_STEP,
            )
        if strategy.own_activation_option:
            raise ConfigurationError(
                f"{self._asked_by} and {strategy.own_activation_option} of {name} both say what "
                "becomes of activations. Leave one of them out."
            )

    def apply(self, module: nn.Module, device_type: str) -> Callable[[], None]:
        """All ranks, before a module is wrapped. Change its units to keep less.

        Returns:
            Undoes it.

        Raises:
            ConfigurationError: there are no units, or something that was listed isn't in the model.
        """
        units = find_units(module, self.listed, asked_by=self._asked_by)
        for name, part in units.named.items():
            if type(part).forward is nn.Module.forward:
                raise ConfigurationError(
                    f"{self._asked_by}: {name!r} is a {type(part).__name__}, which is never called "
                    "itself. List the layers in it."
                )
        offload_from = None
        if self.offload:
            offload_from = device_type
        return save_activations(
            units.named.values(),
            checkpoints=self.is_checkpointing,
            policy=self.policy,
            offload_from=offload_from,
        )


def _parse(checkpointing: Any) -> tuple[object, object]:
    """The listed units, None for those of the model; and the selective policy, None for none."""
    parts = checkpointing
    if not isinstance(parts, Mapping):
        parts = {"units": checkpointing}
        if _is_policy(checkpointing):
            parts = {"policy": checkpointing}
    units, policy = parts.get("units", "units"), parts.get("policy")
    if isinstance(units, type):
        units = [units]
    if policy is not None and not _is_policy(policy):
        raise ConfigurationError(
            f"activation_checkpointing has the policy {policy!r}: expected {_FORMS}."
        )
    is_listed = isinstance(units, _LISTS) and units and all(map(_is_unit, units))
    if not parts or parts.keys() - {"units", "policy"} or not (is_listed or units == "units"):
        raise ConfigurationError(f"activation_checkpointing={checkpointing!r}: expected {_FORMS}.")
    if not is_listed:
        units = None
    if isinstance(policy, _LISTS):
        policy = list(policy)
    return units, policy


def _is_unit(item: object) -> bool:
    return isinstance(item, str) or (isinstance(item, type) and issubclass(item, nn.Module))


def _is_policy(given: object) -> bool:
    if isinstance(given, _LISTS):
        return bool(given) and all(isinstance(item, torch._ops.OpOverload) for item in given)
    return callable(given) and not isinstance(given, type)
