"""The sections of a checkpoint, which somebody else may have written: each of its type, or refused by name."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from core.contract import CheckpointCorruptedError, CoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from core.contract import PathLike

_DICTS = ("format", "model", "module_section", "hyper_parameters", "precision", "progress", "callbacks", "datamodule")
_LISTS = ("optimizers", "lr_schedulers", "schedulers", "ranks")
_TYPES: dict[str, type] = {**dict.fromkeys(_DICTS, dict), **dict.fromkeys(_LISTS, list)}
_ITEMS: dict[str, type] = dict.fromkeys((*_LISTS, "callbacks"), dict)
_COUNTS = ("epoch", "batch", "global_step", "total_batches")
_MAX_REASON = 300


def check(saved: Mapping[str, Any], path: PathLike) -> None:
    """Check what was saved, or its description, before any of it is restored.

    Raises:
        CheckpointCorruptedError: a section isn't of its type.
    """
    for name, kind in _TYPES.items():
        if name in saved:
            _expect(kind, saved[name], name, path)
    for name, kind in _ITEMS.items():
        section = saved.get(name, [])
        for key, item in section.items() if isinstance(section, dict) else enumerate(section):
            _expect(kind, item, f"{name}[{key!r:.80}]", path)
    version = saved.get("format", {}).get("version")
    _expect(int, 0 if version is None else version, "format['version']", path)
    for index, optimizer in enumerate(saved.get("optimizers", [])):
        _expect(str, optimizer.get("class", ""), f"optimizers[{index}]['class']", path)
    for index, scheduler in enumerate(saved.get("schedulers", [])):
        _check_scheduler(scheduler, f"schedulers[{index}]", path)
    for key, callback in saved.get("callbacks", {}).items():
        _expect(dict, callback.get("state"), f"callbacks[{key!r:.80}]['state']", path)
    _expect(dict, saved.get("datamodule", {}).get("state", {}), "datamodule['state']", path)
    for index, rank in enumerate(saved.get("ranks", [])):
        _expect(dict, rank.get("random"), f"ranks[{index}]['random']", path)
        _expect(int, rank.get("share"), f"ranks[{index}]['share']", path)
    for name in _COUNTS if "progress" in saved else ():
        count = saved["progress"].get(name)
        _expect(int, count, f"progress[{name!r}]", path)
        if count < 0:
            raise _wrong(path, f"progress[{name!r}]", f"{count!r:.80}, a count below 0")
    if "progress" in saved:
        _expect((int, float), saved["progress"].get("elapsed_s"), "progress['elapsed_s']", path)
    loaders = saved.get("loaders")
    for name, loader in loaders.items() if isinstance(loaders, dict) else ():
        if isinstance(loader, dict) and "epoch" in loader:
            _expect(int, loader["epoch"], f"loaders[{name!r:.80}]['epoch']", path)


def check_like(part: Any, saved: Any, name: str, path: PathLike) -> None:
    """Check that what was saved has numbers, dicts and lists where the state of `part` has them, a list of parts too.

    Raises:
        CheckpointCorruptedError: it has something else there.
    """
    if isinstance(part, list) and isinstance(saved, list):
        for index, (one, own) in enumerate(zip(part, saved, strict=False)):
            check_like(one, own, f"{name}[{index}]", path)
    elif name.startswith("lr_schedulers") and callable(method := getattr(part, "state_dict", None)):
        _check_values(method(), saved, name, path)


def _check_values(own: Any, saved: Any, name: str, path: PathLike) -> None:
    kinds = (int | float, dict, list)
    kind = next((kind for kind in kinds if isinstance(own, kind) and not isinstance(own, bool)), None)
    if kind is not None and (not isinstance(saved, kind) or isinstance(saved, bool)):
        expected = "number" if kind not in (dict, list) else kind.__name__  # type: ignore[union-attr]
        raise _wrong(path, name, f"a {type(saved).__name__}, where a {expected} was expected")
    if isinstance(own, dict):
        for key in own.keys() & saved.keys():
            _check_values(own[key], saved[key], f"{name}[{key!r:.80}]", path)
    elif isinstance(own, list):
        for index, (one, other) in enumerate(zip(own, saved, strict=False)):
            _check_values(one, other, f"{name}[{index}]", path)


@contextlib.contextmanager
def restoring(name: str, path: PathLike, saved: object = "something") -> Iterator[None]:
    """A context in which one section is restored: what raises there does so over its content, shown if it is given.

    Raises:
        CheckpointCorruptedError: with the section's name.
    """
    try:
        yield
    except (CoreError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise _wrong(path, name, f"{saved!s:.80} that can't be restored. {reason:.{_MAX_REASON}}") from error


def _check_scheduler(saved: Mapping[str, Any], name: str, path: PathLike) -> None:
    _expect(str, saved.get("class", ""), f"{name}['class']", path)
    _expect(list, parts := saved.get("parts", []), f"{name}['parts']", path)
    for index, part in enumerate(parts):
        _expect(dict, part, f"{name}['parts'][{index}]", path)
        _check_scheduler(part, f"{name}['parts'][{index}]", path)


def _expect(kind: type | tuple[type, ...], value: object, name: str, path: PathLike) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        expected = kind.__name__ if isinstance(kind, type) else "number"
        raise _wrong(path, name, f"a {type(value).__name__}, where a {expected} was expected")


def _wrong(path: PathLike, name: str, what: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(
        f"{path} is damaged, or not a checkpoint of this run: its {name} is {what}. Load another checkpoint."
    )
