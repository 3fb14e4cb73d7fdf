"""Key paths in DeepSpeed's config, which is a dictionary of dictionaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

KeyPath = tuple[str, ...]

STAGE: KeyPath = ("zero_optimization", "stage")
OFFLOAD_PARAMETERS: KeyPath = ("zero_optimization", "offload_param")
OFFLOAD_OPTIMIZER: KeyPath = ("zero_optimization", "offload_optimizer")


def look_up(config: Mapping[str, Any], key_path: KeyPath) -> Any:
    """The value at a key path, or None."""
    value: Any = config
    for key in key_path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def put(config: dict[str, Any], key_path: KeyPath, value: Any) -> None:
    """Write to a key path. Blocks on the way are made if they aren't there."""
    for key in key_path[:-1]:
        config = config.setdefault(key, {})
    config[key_path[-1]] = value


def offload_device(config: Mapping[str, Any], block: KeyPath) -> str | None:
    """The device to which parameters (`OFFLOAD_PARAMETERS`) or optimizer state
    (`OFFLOAD_OPTIMIZER`) go, or None.
    """
    device = look_up(config, (*block, "device"))
    return None if device in (None, "none") else str(device)


def uses_nvme(config: Mapping[str, Any]) -> bool:
    """True if anything goes to a disk."""
    return "nvme" in {
        offload_device(config, block) for block in (OFFLOAD_PARAMETERS, OFFLOAD_OPTIMIZER)
    }
