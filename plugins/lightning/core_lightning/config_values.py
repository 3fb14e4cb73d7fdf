"""Values of configs: a callback that both core and this package have a class for is meant as Lightning's."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

MODE = "lightning"
"""The name under which jsonargparse knows how these configs are read and written: as YAML."""

_CALLBACKS = "lightning.pytorch.callbacks"
_TWICE = ("BasePredictionWriter", "EarlyStopping", "ModelCheckpoint", "RichProgressBar", "WeightAveraging")


def register() -> None:
    """Register with jsonargparse how values are read. A second call changes nothing."""
    import jsonargparse

    yaml = import_module("yaml")

    load = jsonargparse.get_loader("yaml")
    jsonargparse.set_loader(MODE, lambda text: _with_homes(load(text)), (yaml.YAMLError,))
    jsonargparse.set_dumper(MODE, lambda values: yaml.safe_dump(values, default_flow_style=False, sort_keys=False))


def words_with_homes(words: Sequence[str]) -> list[str]:
    """The words of a command line, such as `--trainer.callbacks=EarlyStopping`, likewise."""
    homes, option = [], ""
    for word in words:
        begins = word.startswith("--")
        option, is_joined, value = word.partition("=") if begins else (option, "", word)
        is_value = bool(is_joined) or not begins
        if is_value and option.removesuffix("+").endswith(".callbacks"):
            value = _with_homes(value)
        homes.append(f"{option}{is_joined}{value}" if begins else value)
    return homes


def _with_homes(value: Any) -> Any:
    """The value with packages before the names of those callbacks, alone or as a `class_path`."""
    if isinstance(value, str):
        return f"{_CALLBACKS}.{value}" if value in _TWICE else value
    if isinstance(value, list):
        return [_with_homes(item) if isinstance(item, dict | list) else item for item in value]
    if isinstance(value, dict):
        homes = {key: _with_homes(item) for key, item in value.items() if isinstance(item, dict | list)}
        named = {"class_path": _with_homes(value["class_path"])} if "class_path" in value else {}
        return {**value, **homes, **named}
    return value
