"""A module, or a data module, made again from a checkpoint of a Trainer, without a Trainer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from core.checkpoint import TorchCheckpointIO
from core.contract import CheckpointError, ConfigurationError, Strategy
from core.session import Session, from_canonical
from core_training.hooks.events import overrides
from core_training.hparams import foreign_state
from core_training.hparams.hyperparameters import rebuild

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core.contract import PathLike


def load_module(
    cls: type[object],
    path: PathLike,
    map_location: Any,
    strict: bool | None,
    arguments: Mapping[str, Any],
    hparams_file: PathLike | None = None,
) -> Any:
    """See `core.Module.load_from_checkpoint`."""
    device = None
    try:
        if map_location is not None:
            device = torch.device(map_location)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(
            f"map_location={map_location!r}: expected a device, such as 'cpu' or 'cuda:0', or None "
            "for the CPU."
        ) from error
    saved = _read(path)
    if not isinstance(saved.get("model"), dict):
        raise foreign_state.refusal(saved, path)
    module = _rebuild(cls, saved, hparams_file, arguments)
    if overrides(module, "configure_model"):
        module.configure_model()
    if overrides(module, "on_load_checkpoint"):
        module.on_load_checkpoint(saved.get("module_section", {}))
    if strict is None:
        strict = getattr(module, "strict_loading", True)
    try:
        module.load_state_dict(from_canonical(module, saved["model"]), strict=strict)
    except RuntimeError as error:
        raise CheckpointError(
            f"{path} does not fit {cls.__name__}. Pass the arguments that it was made with, or "
            f"strict=False. {error}"
        ) from error
    if device is not None:
        module.to(device)
    return module


def load_datamodule(
    cls: type[object],
    path: PathLike,
    arguments: Mapping[str, Any],
    hparams_file: PathLike | None = None,
) -> Any:
    """See `core.DataModule.load_from_checkpoint`."""
    section = _read(path).get("datamodule")
    if not isinstance(section, dict):
        raise CheckpointError(
            f"{path} has nothing of a data module: it is saved where it has hyperparameters or a "
            f"state. Make {cls.__name__} as usual."
        )
    datamodule = _rebuild(cls, section, hparams_file, arguments)
    if "state" in section:
        datamodule.load_state_dict(section["state"])
    return datamodule


def _read(path: PathLike) -> dict[str, Any]:
    return TorchCheckpointIO().load_checkpoint(path, collectives=Session(Strategy()).collectives)


def _rebuild(
    cls: type[object],
    saved: Mapping[str, Any],
    hparams_file: PathLike | None,
    arguments: Mapping[str, Any],
) -> Any:
    if hparams_file is not None:
        hparams = read_hparams(hparams_file)
        # As a config library reads a file, all of its mappings have their items as attributes.
        saved = {
            **saved,
            "hyper_parameters": hparams,
            "hyper_parameters_with_attributes": list(hparams),
        }
    return rebuild(cls, saved, arguments)


def read_hparams(path: PathLike) -> dict[str, object]:
    """The hyperparameters by name, from a local `.json`, `.yaml` or `.yml`. Nothing in it is
    executed.

    Raises:
        ConfigurationError: it isn't there, or holds something else.
    """
    name = f"hparams_file={os.fspath(path)!r}"
    parse: Callable[[str], object] = _parse_yaml
    if os.fspath(path).endswith(".json"):
        parse = json.loads
    try:
        values = parse(Path(path).expanduser().read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{name} can't be read: {error}.") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"{name}: expected names with values, at the top level.")
    return values


def _parse_yaml(text: str) -> object:
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ConfigurationError(
            "hparams_file: to read YAML, PyYAML has to be installed: pip install pyyaml. Or write "
            "a .json."
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
