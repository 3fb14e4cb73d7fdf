"""YAML and JSON that somebody else may have written: read at once, or refused in a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core.contract import PathLike

_MAX_BYTES = 1 << 20
_MAX_SLOW_BYTES = 64 << 10
"""Of YAML where PyYAML comes without libyaml, whose parser is some twenty times as fast as Python's."""
_MAX_DEPTH = 100
_MAX_COPIES = 64
"""The most values for each character: an anchor may stand for the same ones in several places."""
_MAX_INT_BITS = 4096
_MAX_REASON = 300
"""Characters of a parser's own message that are shown."""


def read_text(path: PathLike) -> str:
    """The text of a file.

    Raises:
        OSError: it can't be read.
        ValueError: it is too large, or no UTF-8.
    """
    with open(path, "rb") as file:
        raw = file.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES >> 20} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it isn't written in UTF-8 (byte {error.start}). Save it as that") from None


def parse_json(text: str) -> Any:
    """The values in a JSON text.

    Raises:
        ValueError: it isn't one, or is nested too deeply.
    """
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_numbers(values, 0)
    return values


def parse_yaml(text: str) -> Any:
    """The values in a YAML text. Nothing in it is executed.

    Raises:
        ConfigurationError: PyYAML isn't installed.
        ValueError: it isn't YAML; or anchors in it stand for themselves, or for more than a file of its size can hold;
            or it is nested too deeply.
    """
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ConfigurationError(
            "hparams_file: to read YAML, PyYAML has to be installed: pip install pyyaml. Or write a .json."
        ) from error
    fast = getattr(yaml, "CSafeLoader", None)
    if fast is None and len(text) > _MAX_SLOW_BYTES:
        raise ValueError(f"it has more than {_MAX_SLOW_BYTES >> 10} KiB, and this PyYAML has no libyaml to read more")
    loader_class = fast or yaml.SafeLoader
    try:
        _check_depth(yaml.parse(text, Loader=loader_class))
        loader = loader_class(text)
        node = loader.get_single_node()
        # Of the nodes, before anything is made: a merge (`<<`) copies what its anchor stands for.
        _count_nodes(node, _MAX_COPIES * len(text))
        values = None if node is None else loader.construct_document(node)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())[:_MAX_REASON]
        # libyaml looks ahead, and since 0.2.6 has a limit of its own, which it meets before the events are counted.
        raise ValueError(_TOO_DEEP if "maximum nesting depth" in reason else reason) from None
    _check_numbers(values, 0)
    return values


def _check_depth(events: Iterable[Any]) -> None:
    """Stop at the first value that is too deep: to read those below takes longer and longer."""
    depth = 0
    for event in events:
        name = type(event).__name__
        depth += name.endswith("StartEvent") - name.endswith("EndEvent")
        if depth > _MAX_DEPTH + 2:  # a stream and a document are the outermost two
            raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"it is nested more than {_MAX_DEPTH} levels deep"


def _count_nodes(root: Any, most: int) -> None:
    """Count values as often as anchors repeat them, each node looked at once.

    Raises:
        ValueError: there are more than `most`, too many levels, or a node is in itself.
    """
    counted: dict[int, int] = {}
    open_ones: set[int] = set()

    def count(node: Any, depth: int) -> int:
        if node is None or isinstance(node.value, str):
            return 1
        if id(node) in open_ones:
            raise ValueError("an anchor in it stands for something that holds itself")
        if depth > _MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        if id(node) not in counted:
            open_ones.add(id(node))
            parts = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
            counted[id(node)] = 1 + sum(count(part, depth + 1) for part in parts)
            open_ones.remove(id(node))
            if counted[id(node)] > most:
                raise ValueError("anchors in it stand for more values than a file of its size can hold")
        return counted[id(node)]

    count(root, 0)


def _check_numbers(value: Any, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    if type(value) is int and value.bit_length() > _MAX_INT_BITS:
        raise ValueError(f"a number in it has {value.bit_length()} bits")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_numbers(part, depth + 1)
