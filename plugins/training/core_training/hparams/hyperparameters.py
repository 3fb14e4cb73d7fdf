"""A module's arguments: collected when it is made, saved with its weights, and enough to make it
again.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from argparse import Namespace
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from core.checkpoint import to_plain
from core.contract import ModuleError, did_you_mean
from core_training.settings.warn_at import warn_caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Hyperparameters(dict[str, Any]):
    """A dict whose items are attributes too: `hparams.lr` and `hparams["lr"]` are the same."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(
            f"There is no hyperparameter {name!r}; there are "
            f"{', '.join(map(repr, self)) or 'none'}."
        )

    __setattr__ = dict.__setitem__


@dataclasses.dataclass(slots=True)
class _RunningInit:
    """An `__init__` that runs, and the names that its `save_hyperparameters` leaves out."""

    bound: Callable[[], inspect.BoundArguments]
    ignored: set[str] = dataclasses.field(default_factory=set)

    def arguments(self) -> dict[str, Any]:
        """All of them by name, with defaults."""
        bound = self.bound()
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        for name, parameter in bound.signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= arguments.pop(name)
            elif parameter.kind is parameter.VAR_POSITIONAL:
                del arguments[name]
        return arguments


class HasHyperparameters:
    """Remembers the arguments of `__init__`. Modules and data modules may inherit from it."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        known = [base.__init__ for base in cls.__bases__ if issubclass(base, HasHyperparameters)]
        # its own, or that of a class of another kind that it inherits from
        if cls.__init__ not in (object.__init__, nn.Module.__init__, *known):
            cls.__init__ = _noted(cls.__init__)  # type: ignore[method-assign]

    @property
    def hparams(self) -> Hyperparameters:
        """The arguments that `save_hyperparameters` has collected; empty before."""
        found: Hyperparameters = self.__dict__.setdefault("_hparams", Hyperparameters())
        return found

    @hparams.setter
    def hparams(self, values: Any) -> None:
        self.__dict__["_hparams"] = Hyperparameters(_as_dict(values))

    def save_hyperparameters(
        self, *names: Any, ignore: str | Iterable[str] | None = None, logger: bool = True
    ) -> None:
        """Keep the arguments of the `__init__` that runs in `self.hparams` and checkpoints, and
        give them to the loggers.

        Arguments of the `__init__` of subclasses, which call this one, are kept as well. They are
        kept as they were passed, with what has been changed in them until now: copies, except for
        what a checkpoint can't hold.

        Args:
            names: of the arguments to keep; or one dict, Namespace or dataclass instance of
                hyperparameters. By default all arguments.
            ignore: names to leave out, such as modules that were passed in; also from what a base
                class saves.
            logger: give them to the loggers.

        Raises:
            ModuleError: not called in `__init__`, or a name that is no argument.
        """
        ignored = {ignore} if isinstance(ignore, str) else set(ignore or ())
        inits: list[_RunningInit] = self.__dict__.get("_hparams_inits", [])
        if inits:
            inits[-1].ignored = ignored
        if len(names) == 1 and not isinstance(names[0], str):
            given = _as_dict(names[0])
            values = {name: value for name, value in given.items() if name not in ignored}
            self.__dict__["_hparams_argument"] = _name_of(names[0], inits)
        else:
            values = _collect(self, inits, names)
        values = _copied(values)
        for name in ignored:  # a base class may have saved it before
            self.hparams.pop(name, None)
        self.hparams.update(values)
        self.__dict__["_logs_hparams"] = logger
        self.__dict__["_hparams_initial"] = _copied(self.hparams)
        reasons = unplain(values)
        if reasons:
            owner = type(self).__name__
            left_out = list(reasons)
            what = ", ".join(f"{name!r} of {owner} is a {kind}" for name, kind in reasons.items())
            warn_caller(
                f"The hyperparameter {what}, which a checkpoint can't hold: left out of "
                f"checkpoints, and kept in self.hparams. Pass ignore={left_out} if that is meant, "
                f"and pass it again as load_from_checkpoint(path, {left_out[0]}=...)."
            )

    @property
    def hparams_initial(self) -> Hyperparameters:
        """A copy of what `save_hyperparameters` has collected, before anything was changed."""
        return _copied(self.__dict__.get("_hparams_initial", {}))


def _noted(init: Callable[..., None]) -> Callable[..., None]:
    """An `__init__` whose arguments are kept with the object while it runs."""
    signature = inspect.signature(functools.partial(init, None))

    @functools.wraps(init)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        running = self.__dict__.setdefault("_hparams_inits", [])
        running.append(_RunningInit(functools.partial(signature.bind, *args, **kwargs)))
        try:
            init(self, *args, **kwargs)
        finally:
            running.pop()
            if not running:
                del self.__dict__["_hparams_inits"]

    return call


def hparams_of(owner: object) -> MutableMapping[str, Any]:
    """The `hparams` of a module or data module of whatever class; empty if it has none."""
    hparams = getattr(owner, "hparams", None)
    if isinstance(hparams, Namespace):
        return vars(hparams)
    if isinstance(hparams, MutableMapping):
        return hparams
    return {}


def to_checkpoint(owner: object) -> dict[str, object]:
    """The sections of a checkpoint from which `load_from_checkpoint` makes the module again."""
    hparams = hparams_of(owner)
    if not hparams:
        return {}
    left_out = unplain(hparams)
    values = {name: _plain(value) for name, value in hparams.items() if name not in left_out}
    sections: dict[str, object] = {"hyper_parameters": values}
    argument = getattr(owner, "__dict__", {}).get("_hparams_argument")
    if argument is not None:
        sections["hyper_parameters_argument"] = argument
    reachable = [name for name in values if _holds_config(hparams[name])]
    if reachable:
        sections["hyper_parameters_with_attributes"] = reachable
    return sections


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
    hparams = dict(saved.get("hyper_parameters", {}))
    for name in saved.get("hyper_parameters_with_attributes", ()):
        hparams[name] = _reachable(hparams[name])
    argument = saved.get("hyper_parameters_argument")
    if argument:
        hparams = {argument: Hyperparameters(hparams)}
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
        for name in overrides:
            if name not in parameters:
                raise ModuleError(
                    f"load_from_checkpoint got {name!r}, which {cls.__name__}.__init__ does not "
                    f"take.{did_you_mean(name, parameters)} It takes "
                    f"{', '.join(parameters) or 'nothing'}."
                )
        hparams = {name: value for name, value in hparams.items() if name in parameters}
    arguments = {**hparams, **overrides}
    for name, parameter in parameters.items():
        is_needed = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if is_needed and name not in arguments:
            raise ModuleError(
                f"{cls.__name__}.__init__ needs {name!r}, which the checkpoint's hyperparameters "
                f"don't have ({', '.join(hparams) or 'there are none'}). Pass it: "
                f"{cls.__name__}.load_from_checkpoint(path, {name}=...), or call "
                "save_hyperparameters in __init__."
            )
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
    if type(value) is list:
        return [_reachable(item) for item in value]
    return value


def _collect(
    owner: object, inits: Sequence[_RunningInit], names: Sequence[str]
) -> dict[str, object]:
    """Arguments, or those with these names, of the `__init__`s that run: of two with one name,
    that of the subclass.
    """
    if not inits:
        raise ModuleError(
            f"save_hyperparameters was not called in {type(owner).__name__}.__init__, so that "
            "there are no arguments to keep. Call it there, or pass the hyperparameters: "
            "self.save_hyperparameters({'lr': 0.1})."
        )
    collected: dict[str, object] = {}
    ignored = set[str]()
    for init in inits:  # from the outermost subclass inwards
        ignored |= init.ignored
        for name, value in init.arguments().items():
            if name not in ignored:
                collected.setdefault(name, value)
    for name in names:
        if name not in collected and name not in ignored:
            hint = did_you_mean(str(name), collected)
            raise ModuleError(
                f"save_hyperparameters({name!r}): __init__ has no such argument.{hint} It has "
                f"{', '.join(collected)}."
            )
    return {name: value for name, value in collected.items() if not names or name in names}


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


def _name_of(given: object, inits: Sequence[_RunningInit]) -> str | None:
    """The argument of the innermost `__init__` that is this object: it gets the hyperparameters
    when the module is made again.
    """
    for init in inits[-1:]:
        for name, value in init.arguments().items():
            if value is given:
                return name
    return None


def _copied(values: Mapping[str, Any]) -> Hyperparameters:
    copied = Hyperparameters(values)
    for name in values.keys() - unplain(values):
        copied[name] = copy.deepcopy(values[name])
    return copied
