"""Hyperparameters from a file, for checkpoints that have none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError
from core.trainer.hparams import yaml_text

if TYPE_CHECKING:
    from core.contract import PathLike


def read_hparams(path: PathLike) -> dict[str, Any]:
    """The hyperparameters by name, from a local `.json`, `.yaml` or `.yml`. Nothing in it is executed.

    Raises:
        ConfigurationError: it isn't there, or holds something else.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in (".json", ".yaml", ".yml"):
        raise ConfigurationError(f"hparams_file={os.fspath(path)!r}: expected a .json, .yaml or .yml.")
    try:
        text = yaml_text.read_text(os.path.expanduser(path))
        values = yaml_text.parse_json(text) if ending == ".json" else yaml_text.parse_yaml(text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"hparams_file={os.fspath(path)!r} can't be read: {error}.") from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ConfigurationError(f"hparams_file={os.fspath(path)!r}: expected names with values, at the top level.")
    return values
