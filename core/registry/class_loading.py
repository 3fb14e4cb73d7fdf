"""Turns an offer into the class or factory that it names, and every way to fail into one clear
error.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import TYPE_CHECKING, Any

from core.contract.errors import ConfigurationError, CoreError
from core.contract.kinds import KINDS
from core.registry import refusals
from core.registry.discovery import describe
from core.registry.metadata import split_target
from core.text.spelling import did_you_mean

if TYPE_CHECKING:
    from core.registry.offers import Offer


def import_target(offer: Offer) -> Any:
    """Import what an offer names.

    Raises:
        PluginLoadError: the module raised, or doesn't have it.
    """
    parts = split_target(offer.spec.target)
    assert parts is not None, "the offer's status says so"
    module_name, attribute = parts
    step = "its import raised "
    try:
        module = importlib.import_module(module_name)
        step = ""
        # A dotted attribute, `module:Class.method`, is walked as importlib.metadata does.
        return functools.reduce(getattr, filter(None, attribute.split(".")), module)
    except KeyboardInterrupt:
        raise
    except BaseException as cause:
        # a module can also call sys.exit(), and torch has errors outside Exception
        raise refusals.not_loaded(offer, f"{step}{describe(cause)}", cause) from cause


@functools.cache
def base_class(kind: str) -> type:
    """The class that every target of this kind subclasses or returns."""
    module, _, attribute = KINDS[kind].base.partition(":")
    base = getattr(importlib.import_module(module), attribute)
    assert isinstance(base, type)
    return base


def unfit(target: object, kind: str) -> str:
    """The reason why `target` is neither a class nor a factory of this kind; empty if it may be
    one.
    """
    base = base_class(kind)
    expected = (
        f"expected a subclass of {base.__module__}.{base.__qualname__}, or a function that "
        "returns one's instance"
    )
    if isinstance(target, type):
        if issubclass(target, base):
            return ""
        return f"{expected}; got the class {target.__qualname__}"
    if callable(target):
        return ""
    return f"{expected}; got {_shown(target)}"


def load_target(offer: Offer) -> Any:
    """Import what an offer names, and check that it is a class or a factory of its kind.

    Raises:
        PluginLoadError: it can't be imported, or is something else.
    """
    target = import_target(offer)
    reason = unfit(target, offer.spec.kind)
    if reason:
        raise refusals.not_loaded(offer, reason)
    return target


def call_target(offer: Offer, target: Any, options: dict[str, Any]) -> Any:
    """Make an instance. A target that is one already, as a command is, is returned as it is.

    Raises:
        ConfigurationError: it doesn't take these options.
        PluginLoadError: it raised, or returned something that is no instance of the kind's base
            class.
    """
    base = base_class(offer.spec.kind)
    if isinstance(target, base):
        return target
    try:
        instance = target(**options)
    except (CoreError, KeyboardInterrupt):
        raise
    except BaseException as cause:
        if isinstance(cause, TypeError):
            _check_options(offer, target, options, cause)
        raise refusals.not_loaded(offer, f"making it raised {describe(cause)}", cause) from cause
    if not isinstance(instance, base):
        expected = f"{base.__module__}.{base.__qualname__}"
        raise refusals.not_loaded(
            offer, f"expected an instance of {expected}; got {_shown(instance)}"
        )
    return instance


def _check_options(offer: Offer, target: Any, options: dict[str, Any], raised: TypeError) -> None:
    """Raise for options that neither the target nor its base takes. Any other TypeError is the
    target's own.
    """
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(**options)
        if any(f"unexpected keyword argument {name!r}" in str(raised) for name in options):
            raise raised
    except TypeError as cause:
        unknown = next((name for name in options if name not in signature.parameters), "")
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise ConfigurationError(
            f"The {offer.spec.kind} {offer.spec.alias!r} of {offer} can't be made with "
            f"({given}): {cause}."
            f"{did_you_mean(unknown, signature.parameters)} It takes {signature}."
        ) from None


def _shown(value: object) -> str:
    return f"{value!r:.80} of type {type(value).__qualname__}"
