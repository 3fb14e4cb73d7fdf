"""A module's arguments: collected when it is made, saved with its weights, and enough to make it
again.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core.checkpoint import to_plain
from core.contract import ModuleError, did_you_mean
from core_training.settings.warn_at import warn_caller

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType


class Hyperparameters(dict[str, Any]):
    """A dict whose items are attributes too: `hparams.lr` and `hparams["lr"]` are the same."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(
            f"There is no hyperparameter {name!r}; there are "
            f"{', '.join(map(repr, self)) or 'none'}."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(f"There is no hyperparameter {name!r}.")
        del self[name]


class HasHyperparameters:
    """Remembers the arguments of `__init__`. Modules and data modules may inherit from it."""

    @property
    def hparams(self) -> Hyperparameters:
        """The arguments that `save_hyperparameters` has collected; empty before."""
        found: Hyperparameters = self.__dict__.setdefault("_hparams", Hyperparameters())
        return found

    @hparams.setter
    def hparams(self, values: Any) -> None:
        self.__dict__["_hparams"] = Hyperparameters(_as_dict(values))

    def save_hyperparameters(
        self,
        *names: Any,
        ignore: str | Iterable[str] | None = None,
        frame: FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Keep the arguments of the calling `__init__` in `self.hparams` and checkpoints, and give
        them to the loggers.

        Arguments of the `__init__` of subclasses, which call this one, are kept as well. They are
        kept with the values that they have now: copies, except for what a checkpoint can't hold.

        Args:
            names: of the arguments to keep; or one dict, Namespace or dataclass instance of
                hyperparameters. By default all arguments.
            ignore: names to leave out, such as modules that were passed in; also from what a base
                class saves.
            frame: of the `__init__`; None is the caller's.
            logger: give them to the loggers.

        Raises:
            ModuleError: not called in `__init__`, or a name that is no argument.
        """
        # The calling `__init__`, whose arguments are its local variables.
        frame = frame or sys._getframe(1)
        if len(names) == 1 and not isinstance(names[0], str):
            values = _as_dict(names[0])
            self.__dict__["_hparams_argument"] = _name_of(names[0], frame)
        else:
            values = _select(_collect(self, frame), names)
        own, *outer = [each.f_code.co_qualname for each in _inits(self, frame)] or [""]
        ignored = self.__dict__.setdefault("_hparams_ignored", {})
        ignored[own] = {ignore} if isinstance(ignore, str) else set(ignore or ())
        left_out = set().union(*(ignored.get(each, ()) for each in (own, *outer)))
        values = _copied({name: value for name, value in values.items() if name not in left_out})
        if not any(each in ignored for each in outer):  # what a base class has saved before
            for name in ignored[own]:
                self.hparams.pop(name, None)
        self.hparams.update(values)
        self.__dict__["_logs_hparams"] = logger
        self.__dict__["_hparams_initial"] = _copied(self.hparams)
        _warn_of(type(self).__name__, unplain(values))

    @property
    def hparams_initial(self) -> Hyperparameters:
        """A copy of what `save_hyperparameters` has collected, before anything was changed."""
        return _copied(self.__dict__.get("_hparams_initial", {}))


def hparams_of(owner: object) -> Mapping[str, object]:
    """The `hparams` of a module or data module of whatever class; empty if it has none."""
    hparams = getattr(owner, "hparams", None)
    if isinstance(hparams, Namespace):
        hparams = vars(hparams)
    return hparams if isinstance(hparams, Mapping) else {}


def to_checkpoint(owner: object) -> dict[str, object]:
    """The sections of a checkpoint from which `load_from_checkpoint` makes the module again."""
    if not (hparams := hparams_of(owner)):
        return {}
    left_out = unplain(hparams)
    values = {name: _plain(value) for name, value in hparams.items() if name not in left_out}
    argument = getattr(owner, "__dict__", {}).get("_hparams_argument")
    reachable = [name for name in values if _holds_config(hparams[name])]
    return {
        "hyper_parameters": values,
        **({"hyper_parameters_argument": argument} if argument else {}),
        **({"hyper_parameters_with_attributes": reachable} if reachable else {}),
    }


def rebuild(cls: type[Any], saved: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    """An instance with the hyperparameters of a checkpoint.

    Args:
        cls: of the module.
        saved: the whole checkpoint.
        overrides: arguments that the user passed.

    Raises:
        ModuleError: an argument that `__init__` needs is nowhere, or one that was passed isn't
            known.
    """
    parameters = dict(list(inspect.signature(cls.__init__).parameters.items())[1:])
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if not takes_all and (unknown := [name for name in overrides if name not in parameters]):
        hint = did_you_mean(unknown[0], parameters)
        raise ModuleError(
            f"load_from_checkpoint got {unknown[0]!r}, which {cls.__name__}.__init__ does not "
            f"take.{hint} It takes {', '.join(parameters) or 'nothing'}."
        )
    reachable = saved.get("hyper_parameters_with_attributes", ())
    hparams = {
        name: _reachable(value) if name in reachable else value
        for name, value in saved.get("hyper_parameters", {}).items()
    }
    if argument := saved.get("hyper_parameters_argument"):
        hparams = {argument: Hyperparameters(hparams)}
    arguments = {**hparams, **overrides}
    # Saved ones that `__init__` doesn't take are left out; those that the user has passed were
    # checked above.
    if not takes_all:
        arguments = {name: value for name, value in arguments.items() if name in parameters}
    _check_complete(cls, parameters, arguments, hparams)
    return cls(**arguments)


def unplain(values: Mapping[str, Any]) -> dict[str, str]:
    """Name and reason of what a checkpoint can't hold."""
    reasons = {}
    for name, value in values.items():
        try:
            to_plain({name: _plain(value)})
        except Exception:  # a config library's own, where it can't resolve a reference
            reasons[name] = f"{type(value).__module__}.{type(value).__qualname__}"
    return reasons


def _plain(value: Any) -> object:
    """Nested mappings and sequences as dicts and lists: those of config libraries are of classes of
    their own.
    """
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | tuple):
        return [_plain(item) for item in value]
    return value


def _holds_config(value: Any) -> bool:
    """True if a value is, or contains, a mapping of a config library: those have their items as
    attributes.
    """
    if isinstance(value, Mapping):
        is_config = type(value).__module__ not in ("builtins", "collections")
        return is_config or any(map(_holds_config, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return any(map(_holds_config, value))
    return False


def _reachable(value: Any) -> object:
    """A saved value whose dicts, and those in its lists, have their items as attributes, as in a
    config.
    """
    if type(value) is dict:
        return Hyperparameters({name: _reachable(item) for name, item in value.items()})
    return [_reachable(item) for item in value] if type(value) is list else value


def _collect(owner: object, frame: FrameType) -> dict[str, object]:
    """Arguments of the `__init__` that called, and of those of subclasses around it."""
    inits = _inits(owner, frame)
    if not inits:
        raise ModuleError(
            f"save_hyperparameters was not called in {type(owner).__name__}.__init__, so that "
            "there are no arguments to keep. Call it there, or pass the hyperparameters: "
            "self.save_hyperparameters({'lr': 0.1})."
        )
    # Of two arguments of one name, the subclass's counts.
    return {name: value for each in inits for name, value in _arguments(each).items()}


def _inits(owner: object, frame: FrameType | None) -> list[FrameType]:
    """The `__init__` that called, and those of subclasses around it."""
    inits = []
    while frame is not None and _is_init_of(owner, frame):
        inits.append(frame)
        frame = frame.f_back
    return inits


def _is_init_of(owner: object, frame: FrameType) -> bool:
    code = frame.f_code
    return (
        code.co_name == "__init__"
        and code.co_argcount > 0
        and frame.f_locals.get(code.co_varnames[0]) is owner
    )


def _arguments(frame: FrameType) -> dict[str, object]:
    names, _, keywords, values = inspect.getargvalues(frame)
    arguments = {name: values[name] for name in names[1:]}
    return {**arguments, **(values[keywords] if keywords else {})}


def _select(values: dict[str, Any], names: tuple[Any, ...]) -> dict[str, object]:
    for name in names:
        if name not in values:
            hint = did_you_mean(str(name), values)
            raise ModuleError(
                f"save_hyperparameters({name!r}): __init__ has no such argument.{hint} It has "
                f"{', '.join(values)}."
            )
    return {name: values[name] for name in names} if names else values


def _as_dict(given: object) -> dict[str, object]:
    if isinstance(given, Mapping):
        return {str(name): value for name, value in given.items()}
    if isinstance(given, Namespace):
        return dict(vars(given))
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return {item.name: getattr(given, item.name) for item in dataclasses.fields(given)}
    raise ModuleError(
        f"Hyperparameters are {type(given).__name__} {given!r:.60}; expected names of arguments, "
        "or one dict, Namespace or dataclass instance."
    )


def _name_of(given: object, frame: FrameType) -> str | None:
    """The argument of `__init__` that is this object: it gets the hyperparameters when the module
    is made again.
    """
    if frame.f_code.co_name != "__init__":
        return None
    return next((name for name, value in _arguments(frame).items() if value is given), None)


def _check_complete(
    cls: type, parameters: Mapping[str, Any], arguments: Any, hparams: Mapping[str, Any]
) -> None:
    optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in optional
        and name not in arguments
    ]
    if missing:
        raise ModuleError(
            f"{cls.__name__}.__init__ needs {missing[0]!r}, which the checkpoint's hyperparameters "
            f"don't have ({', '.join(hparams) or 'there are none'}). Pass it: "
            f"{cls.__name__}.load_from_checkpoint(path, {missing[0]}=...), or call "
            "save_hyperparameters in __init__."
        )


def _warn_of(owner: str, reasons: Mapping[str, str]) -> None:
    if not reasons:
        return
    names = list(reasons)
    first, *others = (f"{name!r} of {owner} is a {kind}" for name, kind in reasons.items())
    what = f"The hyperparameter {first}" + "".join(f", {other}" for other in others)
    they = ("they are" if others else "it is") + " in self.hparams, and left out of checkpoints"
    warn_caller(
        f"{what}, which a checkpoint can't hold: {they}. Pass "
        f"ignore={names if others else names[0]!r} if that is meant, and give "
        f"{'them' if others else 'it'} again as load_from_checkpoint(path, {names[0]}=...).",
    )


def _copied(values: Mapping[str, Any]) -> Hyperparameters:
    left_out = unplain(values)
    return Hyperparameters(
        {
            name: value if name in left_out else copy.deepcopy(value)
            for name, value in values.items()
        }
    )
