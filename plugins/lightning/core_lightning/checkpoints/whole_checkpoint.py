"""The whole checkpoint that `on_save_checkpoint` of a program for Lightning expects, and what it
makes of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from core_lightning.checkpoints.allowed_objects import (
    KEY,
    WAY,
    from_bytes,
    sorted_out,
    to_bytes,
)
from core_lightning.checkpoints.left_out import objects_among
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
    before = dict(whole)
    before |= {key: dict(value) for key, value in whole.items() if isinstance(value, dict)}
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
        ids = [{key: id(value) for key, value in each.items()} for each in (before, after)]
        return ids[0] != ids[1]
    return before is not after


def allowed_in(section: dict[str, Any]) -> dict[str, Any]:
    """The objects of allowed classes that a checkpoint has, as sections; hyperparameters under
    their own key.
    """
    if KEY not in section:
        return {}
    found: dict[str, Any] = from_bytes(section[KEY])
    return found


def plain_part(module: Any, changed: dict[str, Any]) -> dict[str, Any]:
    """The part that a checkpoint can hold, with objects of allowed classes as bytes.

    All objects stay with the module for `PickledObjects`; without one, those of other classes are
    left out.
    """
    hparams = changed.pop(_HPARAMS, {})
    plain, objects = _divided(changed)
    plain_hparams, others = _divided(hparams)
    if others:
        objects[_HPARAMS] = others
    give_objects(module, objects)
    if not any(isinstance(each, PickledObjects) for each in module.trainer.callbacks):
        plain |= _allowed_part(module, objects)
    if hparams:
        plain[_HPARAMS] = plain_hparams
    return plain


def _divided(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those that a checkpoint can hold by itself, and the others."""
    plain = {key: value for key, value in values.items() if is_plain(value)}
    return plain, {key: value for key, value in values.items() if key not in plain}


def _allowed_part(module: Any, objects: dict[str, Any]) -> dict[str, bytes]:
    """The objects of a module that are allowed, and a warning of others that its hook has added."""
    added = objects.pop(_HPARAMS, {})
    hparams, _ = sorted_out({**objects_among(module.hparams), **added})
    kept, _ = sorted_out(objects)
    _, left_out = sorted_out({**added, **objects})
    if left_out:
        note(
            f"on_save_checkpoint of {type(module).__name__} adds {', '.join(left_out)}, left out "
            f"of checkpoints. Nothing else that is read is executed. {WAY} "
            "core_lightning.install(trusted=True) keeps all.",
            stacklevel=6,
        )
    if hparams:
        kept[_HPARAMS] = hparams
    if not kept:
        return {}
    return {KEY: to_bytes(kept)}
