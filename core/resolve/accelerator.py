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
    precedence,
    refuse_class,
    same_part,
    survey,
    why_absent,
)
from core.resolve.decision import Choice, Decision
from core.resolve.devices import check_devices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from core.contract import ClusterEnvironment, Launcher
    from core.contract.accelerator import Detection

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
        raise _not_an_accelerator(argument)
    word = ""
    if isinstance(argument, str):
        word = normalize_alias(argument)
    brought = given.get("accelerator")
    if brought is not None:
        _check_agreement(argument, word, brought)
        choice = Choice(KIND, brought, identify(KIND, brought), "the strategy brings it")
    elif isinstance(argument, Accelerator):
        choice = Choice(KIND, argument, identify(KIND, argument), "this instance was passed")
    elif word == "auto" and not given.get("parallel_devices"):
        candidates = survey(KIND)
        chosen = best(KIND, candidates, "accelerator={!r}")
        reason = "; ".join(filter(None, (precedence(chosen, candidates), why_absent(candidates))))
        return create(KIND, chosen.offer, reason)
    elif word == "auto":
        choice = _of_devices(given["parallel_devices"])
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
    per_node = _processes_of_a_node(environment, num_nodes)
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
    elif checked == "auto":
        number, reason = _automatic_number(accelerator, environment, num_nodes)
        indices = accelerator.parse_devices(number)
    else:
        reason = f"devices={argument!r} was asked for"
        if checked == -1:
            reason = "devices=-1 stands for all that are here"
        indices = accelerator.parse_devices(checked)
    if not indices:
        raise DeviceError(
            f"devices={argument!r}: accelerator {accelerator.name!r} has no device here. "
            f"{_alternatives()}"
        )
    return accelerator.torch_devices(indices), _decision(indices, reason)


def _of_devices(devices: Sequence[torch.device]) -> Choice[Accelerator]:
    kind = devices[0].type
    return create(KIND, kind, f"the strategy has parallel_devices on {kind}")


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
    detection = _detection(choice)
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


def _detection(choice: Choice[Accelerator]) -> Detection:
    try:
        return detect(choice.part)
    except (CoreError, KeyboardInterrupt):
        raise
    except BaseException as cause:
        raise PluginLoadError(
            f"The accelerator {choice.identity.alias!r} ({choice.identity}) can't be asked whether "
            f"it is here. {type(cause).__name__}: {cause}. Tell its authors; `core doctor` shows "
            "which other ones are here."
        ) from cause


def _alternatives() -> str:
    return f"Here are: {_names(other.name for other in survey(KIND) if other.is_here)}."


def _check_agreement(argument: object, word: str, brought: Accelerator) -> None:
    named = _STANDS_FOR.get(word, (argument,))
    if word != "auto" and not any(same_part(KIND, one, brought) for one in named):
        raise ConfigurationError(
            f"accelerator={argument!r}, but the strategy was made with {type(brought).__name__}. "
            "Leave one of them out."
        )


def _not_an_accelerator(argument: object) -> ConfigurationError:
    refuse_class(KIND, argument, Accelerator)
    return ConfigurationError(
        f"accelerator={argument!r}: expected a name such as 'cpu', or an instance of "
        "core.Accelerator. " + _alternatives()
    )


def _processes_of_a_node(environment: ClusterEnvironment, num_nodes: int) -> int:
    """Number of processes that a scheduler has made on each node; 0 if it hasn't, or not alike."""
    if not environment.creates_processes or environment.world_size() % num_nodes:
        return 0
    return environment.world_size() // num_nodes


def _automatic_number(
    accelerator: Accelerator, environment: ClusterEnvironment, num_nodes: int
) -> tuple[int, str]:
    """Number of devices that `"auto"` takes. If a scheduler made several processes, one for each of
    them.
    """
    per_node = _processes_of_a_node(environment, num_nodes)
    if per_node > 1:
        return (
            per_node,
            f"auto: one for each of the {per_node} processes that were started on a node",
        )
    number = accelerator.default_num_devices()
    return number, f"auto: {accelerator.name} takes {number}"


def _brought_devices(
    argument: Any, checked: Any, accelerator: Accelerator, brought: list[torch.device]
) -> tuple[list[torch.device], Decision]:
    indices = [device.index or 0 for device in brought]
    if checked not in ("auto", len(brought), indices):
        raise DeviceError(
            f"devices={argument!r}, but the strategy was made with {len(brought)} parallel_devices "
            f"({_names(map(str, brought))}). Leave one of them out."
        )
    expected = accelerator.torch_devices(accelerator.parse_devices(1))[0].type
    strangers = [device for device in brought if device.type != expected]
    if strangers:
        raise DeviceError(
            f"The strategy has {strangers[0]} among its parallel_devices, and accelerator "
            f"{accelerator.name!r} has devices of type {expected!r}. Pass devices of that type, or "
            "another accelerator."
        )
    return brought, _decision(indices, "the strategy brings parallel_devices")


def _decision(indices: Sequence[int], reason: str) -> Decision:
    if len(indices) == 1:
        return Decision("devices", f"1 (index {indices[0]})", reason)
    shown = list(map(str, indices))
    if len(shown) > 8:
        shown[3:-1] = ["..."]
    return Decision("devices", f"{len(indices)} (indices {', '.join(shown)})", reason)


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
