"""Where things stand in DeepSpeed's config, which is a dictionary of dictionaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Place = tuple[str, ...]

STAGE: Place = ("zero_optimization", "stage")
OFFLOAD_PARAMETERS: Place = ("zero_optimization", "offload_param")
OFFLOAD_OPTIMIZER: Place = ("zero_optimization", "offload_optimizer")


def look_up(config: Mapping[str, Any], place: Place) -> Any:
    """What stands at a place, or None."""
    value: Any = config
    for key in place:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def put(config: dict[str, Any], place: Place, value: Any) -> None:
    """Write to a place, whose blocks are made if they aren't there."""
    for key in place[:-1]:
        config = config.setdefault(key, {})
    config[place[-1]] = value


def offload_device(config: Mapping[str, Any], block: Place) -> str | None:
    """Where parameters (`OFFLOAD_PARAMETERS`) or optimizer state (`OFFLOAD_OPTIMIZER`) go: cpu, nvme, or None."""
    device = look_up(config, (*block, "device"))
    return None if device in (None, "none") else str(device)


def uses_nvme(config: Mapping[str, Any]) -> bool:
    """Whether anything goes to a disk."""
    return "nvme" in {offload_device(config, block) for block in (OFFLOAD_PARAMETERS, OFFLOAD_OPTIMIZER)}
