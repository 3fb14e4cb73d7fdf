"""Hyperparameters, as Lightning's `utilities.parsing` has them."""

from __future__ import annotations

import inspect
import pickle
from types import FrameType
from typing import Any


class AttributeDict(dict[str, Any]):
    """A dict whose items are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"There is no {name!r}; there are {sorted(map(str, self))}."
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def is_picklable(obj: object) -> bool:
    """True if `pickle` takes it."""
    try:
        pickle.dumps(obj)
    except (pickle.PickleError, AttributeError, RuntimeError, TypeError):
        return False
    return True


def get_init_args(frame: FrameType) -> dict[str, Any]:
    """The arguments of the `__init__` that runs in a frame, by name."""
    _, _, keywords, values = inspect.getargvalues(frame)
    if "__class__" not in values:
        return {}
    parameters = inspect.signature(values["__class__"].__init__).parameters
    names = [
        name
        for name, item in parameters.items()
        if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
    ]
    arguments = {name: values[name] for name in names[1:]}
    return {**arguments, **(values[keywords] if keywords else {})}


def collect_init_args(frame: FrameType, path_args: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The arguments of this `__init__` and of those that have called it, from the inside
    outwards.
    """
    found = [*path_args]
    at: FrameType | None = frame
    while at is not None and at.f_code.co_name == "__init__":
        found.append(get_init_args(at))
        at = at.f_back
    return found


def save_hyperparameters(
    obj: Any, *args: Any, ignore: Any = None, frame: FrameType | None = None
) -> None:
    """Keep the arguments of an object's `__init__` in its `hparams`."""
    frame = frame or inspect.currentframe().f_back  # type: ignore[union-attr]
    obj.save_hyperparameters(*args, ignore=ignore, frame=frame)


def lightning_hasattr(model: Any, attribute: str) -> bool:
    """True if the module, its hyperparameters or its data module have it."""
    return _holder(model, attribute, strict=False) is not None


def lightning_getattr(model: Any, attribute: str) -> Any:
    """The attribute of the first of these that has it."""
    holder = _holder(model, attribute)
    return holder[attribute] if isinstance(holder, dict) else getattr(holder, attribute)


def lightning_setattr(model: Any, attribute: str, value: Any) -> None:
    """Set the attribute of the first of these that has it."""
    setattr(_holder(model, attribute), attribute, value)


def _holder(model: Any, attribute: str, *, strict: bool = True) -> Any:
    if hasattr(model, attribute):
        return model
    if attribute in getattr(model, "hparams", {}):
        return model.hparams
    datamodule = getattr(getattr(model, "_trainer", None), "datamodule", None)
    if hasattr(datamodule, attribute):
        return datamodule
    if strict:
        raise AttributeError(
            f"Neither {type(model).__name__}, nor its hparams or data module, has {attribute!r}."
        )
    return None
