"""The sections `optimizer` and `scheduler` of a config. What they name is made here, as DeepSpeed
would make it.

DeepSpeed doesn't know them: it would step the scheduler too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from core import ConfigurationError, did_you_mean
from core_deepspeed import library, optimizers
from core_deepspeed.user_config import SECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor
    from torch.optim import Optimizer

_NOT_MADE = ("lion", "muadam", "muadamw", "musgd")
"""Optimizers that DeepSpeed compiles when they are made, or takes from another package."""

_NOT_STEPPED = {
    **dict.fromkeys(("muon", "lamb"), optimizers.WHOLE_TENSORS_CURE),
    **dict.fromkeys(
        ("onebitadam", "onebitlamb", "zerooneadam"), "Name 'AdamW', or leave the section out."
    ),
}
"""Optimizers that core doesn't let DeepSpeed step, and what to do instead."""

_IGNORED_BY_ADAM = ("set_grad_none", "fp32_optimizer_states")
"""Parameters that concern memory only; the numbers are the same."""


@dataclass(frozen=True, slots=True)
class Section:
    """The content of a section.

    Attributes:
        name: `"optimizer"` or `"scheduler"`.
        type: of the class.
        params: arguments of the class, besides what it is for.
    """

    name: str
    type: str
    params: dict[str, Any]


def take(config: dict[str, Any]) -> dict[str, Section]:
    """The sections, by name, which are taken out of a config.

    One with an `"auto"` in it is left to `configure_optimizers`, and a warning says so.

    Raises:
        ConfigurationError: a section is of another form, or has an `"auto"` that nothing can
            resolve.
    """
    given = {name: config.pop(name) for name in SECTIONS if name in config}
    left_open = {
        name: key_path for name, section in given.items() if (key_path := _auto_in(section, name))
    }
    if "scheduler" in left_open and "optimizer" in given.keys() - left_open.keys():
        raise ConfigurationError(
            f"config says {left_open['scheduler']} = 'auto', and makes the optimizer by itself, so "
            "that nothing else can say what it should be. Write the value; or leave both sections "
            "out, and define configure_optimizers."
        )
    for key_path in left_open.values():
        logging.getLogger("core").warning(
            "config says %s = 'auto', which nothing here fills in: the section is left out, and "
            "configure_optimizers says everything.",
            key_path,
        )
    return {name: _read(name, section) for name, section in given.items() if name not in left_open}


def check(sections: Mapping[str, Section]) -> None:
    """Main process, when DeepSpeed is loaded. Make once what the sections name, for a parameter of
    no use.

    Raises:
        ConfigurationError: there is no such class, or it refuses its parameters.
    """
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = (
        make_optimizer(sections["optimizer"], [parameter]) if "optimizer" in sections else None
    )
    if "scheduler" in sections:
        make_scheduler(
            sections["scheduler"], optimizer or torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
        )


def make_optimizer(section: Section, parameters: Iterable[Tensor]) -> Optimizer:
    """The optimizer that a section names.

    Adam and AdamW are torch's: offloaded, DeepSpeed's own takes their place; on a GPU its own
    computes the same.

    Raises:
        ConfigurationError: there is none of that name, or it refuses its parameters.
    """
    kind, params = section.type.lower(), dict(section.params)
    if "max_grad_norm" in params:
        raise ConfigurationError(
            "config says optimizer.params.max_grad_norm, which DeepSpeed refuses. Write it as "
            "gradient_clipping."
        )
    if kind in _NOT_STEPPED:
        raise ConfigurationError(
            f"config says optimizer.type = {section.type!r}: DeepSpeed's own isn't supported by "
            f"core-deepspeed. {_NOT_STEPPED[kind]}"
        )
    if kind in _NOT_MADE:
        raise ConfigurationError(
            f"config says optimizer.type = {section.type!r}, which DeepSpeed compiles when it is "
            "made, or takes from another package. Leave the section out and return that optimizer "
            "from configure_optimizers, or name 'AdamW' or a class of torch.optim."
        )
    if kind in ("adam", "adamw"):
        made: Any = _of_torch(torch.optim, _adam(kind, params), section)
    else:
        made = _of_torch(torch.optim, "Adagrad" if kind == "adagrad" else section.type, section)
    return _made(section, made, list(parameters), params)  # type: ignore[no-any-return]


def _adam(kind: str, params: dict[str, Any]) -> str:
    """The torch class that DeepSpeed means, and its parameters in place: `Adam` decouples weight
    decay there.
    """
    is_decoupled = bool(params.pop("adam_w_mode", True)) or kind == "adamw"
    if not params.pop("torch_adam", False):
        params.setdefault("weight_decay", 0.0)  # torch's AdamW has another default
    if not params.pop("bias_correction", True):
        raise ConfigurationError(
            "config says optimizer.params.bias_correction = False, which torch's Adam can't. Leave "
            "it out, or return deepspeed.ops.adam.FusedAdam from configure_optimizers."
        )
    for name in _IGNORED_BY_ADAM:
        params.pop(name, None)
    return "AdamW" if is_decoupled else "Adam"


def make_scheduler(section: Section, optimizer: Optimizer) -> Any:
    """The scheduler that a section names, DeepSpeed's or torch's; it is stepped after each step of
    the optimizer.

    Raises:
        ConfigurationError: there is none of that name, or it refuses its parameters.
    """
    own = import_module("deepspeed.runtime.lr_schedules")
    is_own = section.type in own.VALID_LR_SCHEDULES
    made = _of_torch(own if is_own else torch.optim.lr_scheduler, section.type, section)
    return _made(section, made, optimizer, section.params)


def _of_torch(module: Any, name: str, section: Section) -> Any:
    found = getattr(module, name, None)
    if not (isinstance(found, type) and callable(getattr(found, "step", None))):
        hint = did_you_mean(
            name, [name for name, one in vars(module).items() if isinstance(one, type)]
        )
        raise ConfigurationError(
            f"config says {section.name}.type = {section.type!r}, which neither DeepSpeed nor "
            f"{module.__name__} has."
            f"{hint}"
        )
    return found


def _made(section: Section, kind: Any, first: Any, params: Mapping[str, Any]) -> Any:
    try:
        return kind(first, **params)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(
            f"config says {section.name}.params = {section.params!r}: {library.cause(error)}"
        ) from error


def _read(name: str, section: Any) -> Section:
    found = section if isinstance(section, Mapping) else {}
    params = found.get("params") or {}
    if not isinstance(found.get("type"), str) or not isinstance(params, Mapping):
        raise ConfigurationError(
            f"config says {name} = {section!r}: expected {{'type': the class, 'params': {{...}}}}, "
            "as DeepSpeed reads it."
        )
    if unknown := sorted(
        key for key, value in found.items() if key not in ("type", "params") and value
    ):
        raise ConfigurationError(
            f"config says {name}.{unknown[0]}, which has no effect here. Leave it out."
        )
    return Section(name, found["type"], dict(params))


def _auto_in(value: Any, key_path: str) -> str | None:
    """The first place of "auto"."""
    if isinstance(value, Mapping):
        return next(
            (
                found
                for key, item in value.items()
                if (found := _auto_in(item, f"{key_path}.{key}"))
            ),
            None,
        )
    return key_path if isinstance(value, str) and value == "auto" else None
