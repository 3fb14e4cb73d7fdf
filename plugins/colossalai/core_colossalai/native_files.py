"""The folders that Colossal-AI's Booster writes: names in them, what the core adds, and how it
reads them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import CheckpointCorruptedError
from core.checkpoint import EngineFolderIO, load_checkpoint, load_mapped, reported_as_damage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from core import Collectives, PathLike

MODEL, OPTIMIZER = "modeling", "optimizer"
"""The places of the Booster's files, by the names of Colossal-AI's own examples."""

REST = "core.pt"
"""The file that holds the rest of a state: all that isn't in the Booster's files. It is written
last.
"""

GROUPS = "param_groups"
_INDEX = "pytorch_model.bin.index.json"
_INSIDE = "in Colossal-AI's files"


def numbered(name: str, index: int) -> str:
    """The name of the first module's or optimizer's files, or of a later one's."""
    return f"{name}_{index}" if index else name


def module_mark(name: str, names: Mapping[str, str]) -> dict[str, Any]:
    """Stands in a state for a module in the Booster's files, with its canonical names by those of
    the files.
    """
    return {_INSIDE: name, "names": dict(names)}


def optimizer_mark(name: str, names: list[str], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Stands in a state for an optimizer in the Booster's files, with names of parameters by their
    positions there.
    """
    return {_INSIDE: name, "names": names, GROUPS: groups}


def name_of(mark: Mapping[str, Any]) -> str:
    """The name of the files that a mark stands for.

    Raises:
        CheckpointCorruptedError: it leads elsewhere.
    """
    name = mark[_INSIDE]
    if not isinstance(name, str) or not _is_name(name):
        raise CheckpointCorruptedError(
            f"{REST!r} names {name!r}, where the name of a file beside it was expected."
        )
    return name


def is_mark(state: Any) -> bool:
    """True for a part of a state that says only that it is in the Booster's files."""
    return isinstance(state, dict) and _INSIDE in state


def marks_in(state: Any) -> Iterator[dict[str, Any]]:
    """All marks in a state."""
    if is_mark(state):
        yield state
    elif isinstance(state, dict | list | tuple):
        items = state.values() if isinstance(state, dict) else state
        for item in items:
            yield from marks_in(item)


def with_marks(state: Any, fill: Callable[[dict[str, Any]], Any]) -> Any:
    """A state with what `fill` gives in the place of each mark."""
    if is_mark(state):
        return fill(state)
    if isinstance(state, dict):
        return {key: with_marks(item, fill) for key, item in state.items()}
    return [with_marks(item, fill) for item in state] if isinstance(state, list) else state


def _is_name(text: str) -> bool:
    return text not in ("", ".", "..") and not {"/", "\\", "\0"} & set(text)


class ColossalAICheckpointIO(EngineFolderIO):
    """Folders that the Booster has written; read without Colossal-AI, as whole states. Nothing in
    them is executed.

    Files of `torch_ddp` and `low_level_zero` hold whole tensors. Only `core.pt` has a digest.
    """

    engine = "Colossal-AI"
    last_file = REST
    how_to_save = (
        "Colossal-AI's own layout is written by its Booster: use "
        "ColossalAIStrategy(colossalai_checkpoint='native')."
    )

    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The whole state in the canonical form, on all ranks; weights are on mapped memory of the
        files.

        Raises:
            CheckpointNotFoundError: nothing is there.
            CheckpointCorruptedError: a file is missing or damaged.
        """
        rest = self.rest(path)
        with reported_as_damage(f"{str(Path(path) / REST)!r} is not what core has written"):
            whole: dict[str, Any] = with_marks(rest, lambda mark: _whole(Path(path), mark))
        return whole

    def rest(self, path: PathLike) -> dict[str, Any]:
        """The part that isn't in the Booster's files, with marks in the place of what is.

        Raises:
            CheckpointNotFoundError: nothing is there.
            CheckpointCorruptedError: the file is damaged.
        """
        self.require(path)
        return load_checkpoint(Path(path) / REST)


def _whole(folder: Path, mark: Mapping[str, Any]) -> dict[str, Any]:
    """The state that a mark stands for."""
    place = folder / name_of(mark)
    names = mark["names"]
    if GROUPS not in mark:
        return {names.get(name, name): value for name, value in _weights(place).items()}
    saved = load_mapped(place)
    try:
        state = {names[index]: dict(entry) for index, entry in saved["state"].items()}
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointCorruptedError(
            f"{str(place)!r} is not the optimizer that {REST!r} names: {error!r:.300}"
        ) from error
    return {
        **{key: value for key, value in mark.items() if key not in (_INSIDE, "names")},
        "state": state,
    }


def _weights(folder: Path) -> dict[str, Tensor]:
    index = folder / _INDEX
    try:
        places = _places(index)
        files = {
            file: load_mapped(folder / file)
            for file in dict.fromkeys(places.values())
            if _is_name(file)
        }
        weights = {name: files[file][name] for name, file in places.items()}
        if others := [name for name, value in weights.items() if not hasattr(value, "layout")]:
            raise TypeError(f"{others[0]!r:.80} is no tensor")
    except (
        OSError,
        ValueError,
        KeyError,
        IndexError,
        AttributeError,
        TypeError,
        RecursionError,
    ) as error:
        raise CheckpointCorruptedError(
            f"{str(index)!r} is missing or damaged: {error!r:.300}"
        ) from error
    return weights


def _places(index: Path) -> dict[str, str]:
    """The name of the file that holds each weight."""
    if not index.is_file():  # of a pipe nobody would ever write the end
        raise FileNotFoundError("no file is there")
    places: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return places
