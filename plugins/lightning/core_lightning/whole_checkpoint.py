"""The whole checkpoint that `on_save_checkpoint` of a program for Lightning expects, and what it makes of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from core_lightning.differences import note
from core_lightning.names import VERSION
from core_lightning.objects import PickledObjects, give_objects, is_plain, objects_of

_HPARAMS = "hyper_parameters"


class WholeCheckpoint(dict[str, Any]):
    """The parts that Lightning has under its keys, as far as module hooks ask for them: not the optimizers' states."""

    @classmethod
    def of(cls, module: Any, **more: Any) -> WholeCheckpoint:
        """The one that would be saved of a module now, and `more`."""
        return cls(
            {
                "epoch": module.current_epoch,
                "global_step": module.global_step,
                "pytorch-lightning_version": VERSION,
                "state_dict": module.state_dict(),
                "loops": {},
                "callbacks": {},
                "optimizer_states": [],
                "lr_schedulers": [],
                "hparams_name": "kwargs",
                _HPARAMS: dict(module.hparams),
                **more,
            }
        )


def give_whole(cls: type[Any], base: type[Any]) -> None:
    """Pass the whole checkpoint to the hooks of a subclass. Their own calls of `super()` get the same."""
    for name, call in (("on_save_checkpoint", _save), ("on_load_checkpoint", _load)):
        hook = getattr(cls, name)
        if hook is not getattr(base, name) and not hasattr(hook, "gets_whole"):
            wrapped = _wrapped(hook, call)
            wrapped.gets_whole = True  # type: ignore[attr-defined]
            setattr(cls, name, wrapped)


def _wrapped(hook: Callable[..., None], call: Callable[..., None]) -> Callable[[Any, dict[str, Any]], None]:
    @functools.wraps(hook)
    def with_whole(self: Any, checkpoint: dict[str, Any]) -> None:
        if isinstance(checkpoint, WholeCheckpoint):
            hook(self, checkpoint)
        else:
            call(self, checkpoint, hook)

    return with_whole


def _save(module: Any, checkpoint: dict[str, Any], hook: Callable[..., None]) -> None:
    whole = WholeCheckpoint.of(module)
    before = {key: dict(value) if isinstance(value, dict) else value for key, value in whole.items()}
    hook(module, whole)
    changed = {key: value for key, value in whole.items() if key not in before or _differs(before[key], value)}
    checkpoint.update(_plain_part(module, changed))


def _load(module: Any, checkpoint: dict[str, Any], hook: Callable[..., None]) -> None:
    objects = objects_of(module)
    hparams = {**module.hparams, **checkpoint.get(_HPARAMS, {}), **objects.get(_HPARAMS, {})}
    hook(module, WholeCheckpoint.of(module, **{**checkpoint, **objects, _HPARAMS: hparams}))


def _differs(before: Any, after: Any) -> bool:
    """True if a hook has put something else there, itself or within."""
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() != after.keys() or any(after[key] is not value for key, value in before.items())
    return before is not after


def _plain_part(module: Any, changed: dict[str, Any]) -> dict[str, Any]:
    """The part that a checkpoint can hold; the rest stays with the module for `PickledObjects`, or is left out."""
    hparams = changed.pop(_HPARAMS, {})
    plain = {key: value for key, value in changed.items() if is_plain(value)}
    plain_hparams = {key: value for key, value in hparams.items() if is_plain(value)}
    objects = {key: value for key, value in changed.items() if key not in plain}
    if others := {key: value for key, value in hparams.items() if key not in plain_hparams}:
        objects[_HPARAMS] = others
    give_objects(module, objects)
    if objects and not any(isinstance(each, PickledObjects) for each in module.trainer.callbacks):
        note(
            f"on_save_checkpoint of {type(module).__name__} adds objects under {sorted(objects)}, which are left out "
            "of checkpoints. Nothing that is read is executed; core_lightning.install(trusted=True) keeps them.",
            stacklevel=5,
        )
    return {**plain, **({_HPARAMS: plain_hparams} if hparams else {})}
