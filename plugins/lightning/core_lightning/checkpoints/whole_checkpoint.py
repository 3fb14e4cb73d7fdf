"""The whole checkpoint that `on_save_checkpoint` of a program for Lightning expects, and what it
makes of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from core_lightning.checkpoints.allowed_objects import KEY, WAY, from_bytes, refusal, to_bytes
from core_lightning.checkpoints.left_out import is_kept
from core_lightning.checkpoints.objects import PickledObjects, give_objects, is_plain, objects_of
from core_lightning.decisions.differences import note
from core_lightning.names.modules import VERSION

_HPARAMS = "hyper_parameters"


class WholeCheckpoint(dict[str, Any]):
    """The parts that Lightning has under its keys, as far as module hooks ask for them: not the
    optimizers' states.
    """

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
    """Pass the whole checkpoint to the hooks of a subclass. Their own calls of `super()` get the
    same.
    """
    for name, call in (("on_save_checkpoint", _save), ("on_load_checkpoint", _load)):
        hook = getattr(cls, name)
        if hook is not getattr(base, name) and not hasattr(hook, "gets_whole"):
            wrapped = _wrapped(hook, call)
            wrapped.gets_whole = True  # type: ignore[attr-defined]
            setattr(cls, name, wrapped)


def _wrapped(
    hook: Callable[..., None], call: Callable[..., None]
) -> Callable[[Any, dict[str, Any]], None]:
    @functools.wraps(hook)
    def with_whole(self: Any, checkpoint: dict[str, Any]) -> None:
        if isinstance(checkpoint, WholeCheckpoint):
            hook(self, checkpoint)
        else:
            call(self, checkpoint, hook)

    return with_whole


def _save(module: Any, checkpoint: dict[str, Any], hook: Callable[..., None]) -> None:
    whole = WholeCheckpoint.of(module)
    before = {
        key: dict(value) if isinstance(value, dict) else value for key, value in whole.items()
    }
    hook(module, whole)
    changed = {
        key: value
        for key, value in whole.items()
        if key not in before or _differs(before[key], value)
    }
    checkpoint.update(plain_part(module, changed))


def _load(module: Any, checkpoint: dict[str, Any], hook: Callable[..., None]) -> None:
    objects = {**allowed_in(checkpoint), **objects_of(module)}
    checkpoint.pop(KEY, None)
    hparams = {**module.hparams, **checkpoint.get(_HPARAMS, {}), **objects.get(_HPARAMS, {})}
    hook(module, WholeCheckpoint.of(module, **{**checkpoint, **objects, _HPARAMS: hparams}))


def _differs(before: Any, after: Any) -> bool:
    """True if a hook has put something else there, itself or within."""
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() != after.keys() or any(
            after[key] is not value for key, value in before.items()
        )
    return before is not after


def allowed_in(section: dict[str, Any]) -> dict[str, Any]:
    """The objects of allowed classes that a checkpoint has, as sections; hyperparameters under
    their own key.
    """
    return from_bytes(section[KEY]) if KEY in section else {}


def plain_part(module: Any, changed: dict[str, Any]) -> dict[str, Any]:
    """The part that a checkpoint can hold, with objects of allowed classes as bytes.

    All objects stay with the module for `PickledObjects`; without one, those of other classes are
    left out.
    """
    hparams = changed.pop(_HPARAMS, {})
    plain = {key: value for key, value in changed.items() if is_plain(value)}
    plain_hparams = {key: value for key, value in hparams.items() if is_plain(value)}
    objects = {key: value for key, value in changed.items() if key not in plain}
    if others := {key: value for key, value in hparams.items() if key not in plain_hparams}:
        objects[_HPARAMS] = others
    give_objects(module, objects)
    if not any(isinstance(each, PickledObjects) for each in module.trainer.callbacks):
        plain |= _allowed_part(module, objects)
    return {**plain, **({_HPARAMS: plain_hparams} if hparams else {})}


def _allowed_part(module: Any, objects: dict[str, Any]) -> dict[str, bytes]:
    """The objects of a module that are allowed, and a warning of others that its hook has added."""
    added = objects.pop(_HPARAMS, {})
    refused = {name: refusal(value) for name, value in [*added.items(), *objects.items()]}
    if left_out := [
        f"{name!r} (of {named})" for name, named in refused.items() if named is not None
    ]:
        note(
            f"on_save_checkpoint of {type(module).__name__} adds {', '.join(left_out)}, left out "
            f"of checkpoints. Nothing else that is read is executed. {WAY} "
            "core_lightning.install(trusted=True) keeps all.",
            stacklevel=6,
        )
    own = {name: value for name, value in module.hparams.items() if not is_kept(value)}
    hparams = {name: value for name, value in (own | added).items() if refusal(value) is None}
    kept = {name: value for name, value in objects.items() if refused[name] is None}
    kept |= {_HPARAMS: hparams} if hparams else {}
    return {KEY: to_bytes(kept)} if kept else {}
