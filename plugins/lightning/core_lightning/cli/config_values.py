"""Values of configs: a class that this package has in place of core's, under the same name, is
meant as Lightning's.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from core_lightning.names.modules import MODULES

MODE = "lightning"
"""The name under which jsonargparse knows how these configs are read and written: as YAML."""

_HOMES = {
    name: f"lightning.pytorch.{package}.{name}"
    for package in ("callbacks", "loggers", "plugins")
    for name, target in MODULES[f"lightning.pytorch.{package}"].items()
    if target.startswith("core_lightning.") and "._" in target
}
"""The paths of those classes, by name: jsonargparse passes over private modules, so that elsewhere
a name is core's.
"""

_TAKEN_BY = (".callbacks", ".logger", ".plugins")


def register() -> None:
    """Register with jsonargparse how values are read. A second call changes nothing."""
    import jsonargparse

    yaml = import_module("yaml")

    load = jsonargparse.get_loader("yaml")
    jsonargparse.set_loader(MODE, lambda text: _with_homes(load(text)), (yaml.YAMLError,))
    jsonargparse.set_dumper(
        MODE, lambda values: yaml.safe_dump(values, default_flow_style=False, sort_keys=False)
    )


def words_with_homes(words: Sequence[str]) -> list[str]:
    """The words of a command line, such as `--trainer.callbacks=EarlyStopping`, likewise."""
    homes, option = [], ""
    for word in words:
        begins = word.startswith("--")
        option, is_joined, value = word.partition("=") if begins else (option, "", word)
        is_value = bool(is_joined) or not begins
        if is_value and option.removesuffix("+").endswith(_TAKEN_BY):
            value = _with_homes(value)
        homes.append(f"{option}{is_joined}{value}" if begins else value)
    return homes


def _with_homes(value: Any) -> Any:
    """The value with the paths of those classes, alone or as a `class_path`."""
    if isinstance(value, str):
        return _HOMES.get(value, value)
    if isinstance(value, list):
        return [_with_homes(item) if isinstance(item, dict | list) else item for item in value]
    if isinstance(value, dict):
        homes = {
            key: _with_homes(item) for key, item in value.items() if isinstance(item, dict | list)
        }
        named = {"class_path": _with_homes(value["class_path"])} if "class_path" in value else {}
        return {**value, **homes, **named}
    return value
