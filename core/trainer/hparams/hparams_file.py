"""Hyperparameters from a file, for checkpoints that have none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError

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
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")
        values = json.loads(text) if ending == ".json" else _parse_yaml(text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"hparams_file={os.fspath(path)!r} can't be read: {error}.") from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ConfigurationError(f"hparams_file={os.fspath(path)!r}: expected names with values, at the top level.")
    return values


def _parse_yaml(text: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ConfigurationError(
            "hparams_file: to read YAML, PyYAML has to be installed: pip install pyyaml. Or write a .json."
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
