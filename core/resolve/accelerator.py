"""Chooses the kind of device, and the devices of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import (
    Accelerator,
    Broken,
    ConfigurationError,
    CoreError,
    DeviceError,
    Found,
    PluginLoadError,
    normalize_alias,
)
from core.registry import ACCELERATOR_REGISTRY
from core.resolve.candidates import (
    ask,
    best,
    create,
    detect,
    identify,
    passed,
    precedence,
    refuse_class,
    same_part,
    survey,
    why_absent,
)
from core.resolve.decision import Choice, Decision
from core.resolve.devices import check_devices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from core.contract import ClusterEnvironment, Launcher

KIND = "accelerator"

_STANDS_FOR = {"gpu": ("cuda", "mps")}
"""Words that stand for the first accelerator that is here, out of several."""


def choose_accelerator(
    argument: Any, given: Mapping[str, Any], launcher: Choice[Launcher] | None = None
) -> Choice[Accelerator]:
    """Decide the kind of device.

    Args:
        argument: `"auto"`, a word that stands for several, a registered name, or an instance.
        given: the parts that the user's strategy brings, an instance or a preset.
        launcher: if one was passed, it is asked for devices first, by `devices_of_nodes`, and what
            isn't here passes.

    Raises:
        ConfigurationError: it contradicts the strategy, or no provider offers it.
        DeviceError: no such device is here, or it can't be used.
    """
    if not isinstance(argument, str | Accelerator):
        refuse_class(KIND, argument, Accelerator)
        raise ConfigurationError(
            f"accelerator={argument!r}: expected a name such as 'cpu', or an instance of "
            "core.Accelerator. " + _alternatives()
        )
    word = ""
    if isinstance(argument, str):
        word = normalize_alias(argument)
    brought = given.get("accelerator")
    if brought is not None:
        named = _STANDS_FOR.get(word, (argument,))
        if word != "auto" and not any(same_part(KIND, one, brought) for one in named):
            raise ConfigurationError(
                f"accelerator={argument!r}, but the strategy was made with "
                f"{type(brought).__name__}. Leave one of them out."
            )
        choice = Choice(KIND, brought, identify(KIND, brought), "the strategy brings it")
    elif isinstance(argument, Accelerator):
        choice = passed(KIND, argument)
    elif word == "auto" and not given.get("parallel_devices"):
        candidates = survey(KIND)
        chosen = best(KIND, candidates, "accelerator={!r}")
        reason = "; ".join(filter(None, (precedence(chosen, candidates), why_absent(candidates))))
        return create(KIND, chosen.offer, reason)
    elif word == "auto":
        kind = given["parallel_devices"][0].type
        choice = create(KIND, kind, f"the strategy has parallel_devices on {kind}")
    elif word in _STANDS_FOR:
        return _first_of(word, launcher)
    else:
        choice = create(KIND, argument, f"accelerator={argument!r} was asked for")
    if launcher is None:
        return _checked(choice)
    return choice


def devices_of_nodes(
    launcher: Launcher,
    accelerator: Choice[Accelerator],
    argument: Any,
    num_nodes: int,
    given: Mapping[str, Any],
) -> int | None:
    """The number of devices on each node, by the launcher that the user passed; None if they are
    this machine's.

    Raises:
        DeviceError: neither the launcher's machines nor this one have any.
    """
    asked = check_devices(argument)
    if "parallel_devices" in given:
        asked = len(given["parallel_devices"])
    counted = launcher.count_devices(accelerator.part, asked, num_nodes)
    if counted is None:
        _checked(accelerator)
    return counted


def choose_devices(
    argument: object,
    accelerator: Accelerator,
    environment: ClusterEnvironment,
    num_nodes: int,
    given: Mapping[str, Any],
    counted: int | None = None,
) -> tuple[list[torch.device], Decision]:
    """Decide which devices of this node the run uses; `counted` of each node, if a launcher has
    counted them.

    Raises:
        DeviceError: `argument` is malformed, or asks for devices that are not here.
    """
    checked = check_devices(argument)
    if "parallel_devices" in given:
        return _brought_devices(argument, checked, accelerator, given["parallel_devices"])
    per_node = 0  # processes that a scheduler has made on each node, if alike
    if environment.creates_processes and environment.world_size() % num_nodes == 0:
        per_node = environment.world_size() // num_nodes
    if (
        environment.shows_own_device
        and checked in ("auto", -1, per_node)
        and accelerator.default_num_devices() == 1
    ):
        reason = f"each of the {per_node} processes that were started on a node sees its own"
        return accelerator.torch_devices([0] * per_node), Decision(
            "devices", f"{per_node} (index 0 of each)", reason
        )
    if counted is not None:
        indices = list(range(counted))
        reason = f"devices={argument!r} on each of the launcher's nodes"
    else:
        reason = f"devices={argument!r} was asked for"
        if checked == -1:
            reason = "devices=-1 stands for all that are here"
        elif checked == "auto" and per_node > 1:
            checked = per_node
            reason = f"auto: one for each of the {per_node} processes that were started on a node"
        elif checked == "auto":
            checked = accelerator.default_num_devices()
            reason = f"auto: {accelerator.name} takes {checked}"
        indices = accelerator.parse_devices(checked)
    if not indices:
        raise DeviceError(
            f"devices={argument!r}: accelerator {accelerator.name!r} has no device here. "
            f"{_alternatives()}"
        )
    return accelerator.torch_devices(indices), _decision(indices, reason)


def _first_of(word: str, launcher: Choice[Launcher] | None) -> Choice[Accelerator]:
    candidates = [ask(KIND, ACCELERATOR_REGISTRY.offer(name)) for name in _STANDS_FOR[word]]
    # A broken one is left to `best`, which says what is wrong with it.
    if not any(other.is_here or isinstance(other.detection, Broken) for other in candidates):
        if launcher is not None:
            return create(
                KIND, _STANDS_FOR[word][0], f"accelerator={word!r}, of which this machine has none"
            )
        raise DeviceError(
            f"accelerator={word!r}: there is none here ({why_absent(candidates)}). "
            f"{_alternatives()}"
        )
    chosen = best(KIND, candidates, "accelerator={!r}")
    return create(
        KIND,
        chosen.offer,
        f"accelerator={word!r} stands for the one of {', '.join(_STANDS_FOR[word])} here",
    )


def _checked(choice: Choice[Accelerator]) -> Choice[Accelerator]:
    """Refuse an accelerator that was chosen by the user and isn't here."""
    try:
        detection = detect(choice.part)
    except (CoreError, KeyboardInterrupt):
        raise
    except BaseException as cause:
        raise PluginLoadError(
            f"The accelerator {choice.identity.alias!r} ({choice.identity}) can't be asked whether "
            f"it is here. {type(cause).__name__}: {cause}. Tell its authors; `core doctor` shows "
            "which other ones are here."
        ) from cause
    if not isinstance(detection, Found):
        why = detection.reason
    elif detection.count == 0:
        why = "it counts no device"
    else:
        return choice
    problem = "is not here"
    if isinstance(detection, Broken):
        problem = "can't be used"
    raise DeviceError(f"Accelerator {choice.part.name!r} {problem}: {why}. {_alternatives()}")


def _alternatives() -> str:
    here = ", ".join(other.name for other in survey(KIND) if other.is_here)
    return f"Here are: {here or 'none'}."


def _brought_devices(
    argument: Any, checked: Any, accelerator: Accelerator, brought: list[torch.device]
) -> tuple[list[torch.device], Decision]:
    indices = [device.index or 0 for device in brought]
    if checked not in ("auto", len(brought), indices):
        raise DeviceError(
            f"devices={argument!r}, but the strategy was made with {len(brought)} parallel_devices "
            f"({', '.join(map(str, brought)) or 'none'}). Leave one of them out."
        )
    expected = accelerator.torch_devices(accelerator.parse_devices(1))[0].type
    for device in brought:
        if device.type != expected:
            raise DeviceError(
                f"The strategy has {device} among its parallel_devices, and accelerator "
                f"{accelerator.name!r} has devices of type {expected!r}. Pass devices of that "
                "type, or another accelerator."
            )
    return brought, _decision(indices, "the strategy brings parallel_devices")


def _decision(indices: Sequence[int], reason: str) -> Decision:
    if len(indices) == 1:
        return Decision("devices", f"1 (index {indices[0]})", reason)
    shown = list(map(str, indices))
    if len(shown) > 8:
        shown[3:-1] = ["..."]
    return Decision("devices", f"{len(indices)} (indices {', '.join(shown)})", reason)
