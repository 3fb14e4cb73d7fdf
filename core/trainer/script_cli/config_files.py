"""The config files that a command line names, looked at before they are parsed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError
from core.trainer.hparams import yaml_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SECTIONS = ("config", "trainer", "model", "data", "optimizer", "lr_scheduler")
"""Options of which the parser takes the name of a file for what is in it, on the command line and in a file."""


def check_config_files(args: Sequence[str]) -> None:
    """Check each file that `--config` names, or a section: the parser would take any time and memory for a stranger's.

    Raises:
        ConfigurationError: it can't be read at once. A file that isn't there is left to the parser.
    """
    checked: set[str] = set()
    for option, path in _named(args):
        _check(f"--{option}", path, checked)


def _check(where: str, path: str, checked: set[str]) -> None:
    """Check a file and those that it names, each once."""
    if os.path.abspath(path) in checked or not os.path.isfile(path):
        return
    checked.add(os.path.abspath(path))
    try:
        values = yaml_text.parse_yaml(yaml_text.read_text(path))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{where} {path!r} can't be read: {error}.") from error
    for key, inner in _named_in(values):
        _check(f"{where} {path!r}, {key}:", os.path.join(os.path.dirname(path), inner), checked)


def _named_in(values: Any) -> Iterator[tuple[str, str]]:
    sections = values if isinstance(values, dict) else {}
    yield from ((key, sections[key]) for key in _SECTIONS if isinstance(sections.get(key), str))


def _named(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    for index, argument in enumerate(args):
        option, has_value, value = argument.removeprefix("--").partition("=")
        if argument.startswith("--") and option in _SECTIONS:
            yield from ((option, word) for word in ([value] if has_value else args[index + 1 : index + 2]))
