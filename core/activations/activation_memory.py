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
        if self.is_checkpointing:
            self.listed, self.policy = _parse(checkpointing)
        self._asked_by = (
            "activation_checkpointing='units'"
            if self.is_checkpointing
            else "activation_offload=True"
        )

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
        if idle := [
            name for name, part in units.named.items() if type(part).forward is nn.Module.forward
        ]:
            raise ConfigurationError(
                f"{self._asked_by}: {idle[0]!r} is a {type(units.named[idle[0]]).__name__}, which "
                "is never called itself. List the layers in it."
            )
        return save_activations(
            units.named.values(),
            checkpoints=self.is_checkpointing,
            policy=self.policy,
            offload_from=device_type if self.offload else None,
        )


def _parse(checkpointing: Any) -> tuple[object, object]:
    """The listed units, None for those of the model; and the selective policy, None for none."""
    if isinstance(checkpointing, Mapping):
        if not checkpointing or checkpointing.keys() - {"units", "policy"}:
            raise ConfigurationError(
                f"activation_checkpointing={dict(checkpointing)!r}: expected {_FORMS}."
            )
        listed, _ = _parse(checkpointing.get("units", "units"))
        policy = checkpointing.get("policy")
        if policy is not None and not _is_policy(policy):
            raise ConfigurationError(
                f"activation_checkpointing has the policy {policy!r}: expected {_FORMS}."
            )
        return listed, _as_policy(policy)
    if isinstance(checkpointing, str) and checkpointing == "units":
        return None, None
    if _is_policy(checkpointing):
        return None, _as_policy(checkpointing)
    items = [checkpointing] if isinstance(checkpointing, type) else checkpointing
    is_listed = isinstance(items, list | tuple | set | frozenset) and items
    if not is_listed or not all(isinstance(item, str) or _is_layer_class(item) for item in items):
        raise ConfigurationError(f"activation_checkpointing={checkpointing!r}: expected {_FORMS}.")
    return items, None


def _is_layer_class(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, nn.Module)


def _is_policy(given: object) -> bool:
    if isinstance(given, list | tuple | set | frozenset):
        return bool(given) and all(isinstance(item, torch._ops.OpOverload) for item in given)
    return callable(given) and not isinstance(given, type)


def _as_policy(given: object) -> object:
    return list(given) if isinstance(given, tuple | set | frozenset) else given
