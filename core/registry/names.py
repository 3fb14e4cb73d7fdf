"""The names that users and metadata write, folded to one form."""

from __future__ import annotations

import re

from core._version import DISTRIBUTION, TRAINING
from core.contract.spec import normalize_alias

_SEPARATORS = re.compile(r"[-_.]+")
_UNFIT_IN_ALIAS = re.compile(r"[^A-Za-z0-9_.+-]")

IN_PROCESS = "<in-process>"
"""Name of the provider of what the running process has registered. No distribution can be called
that.
"""


def normalize_distribution(name: str) -> str:
    """Fold the name of a distribution to its one written form (PEP 503): `"Core_Acme"` becomes
    `"core-acme"`.
    """
    return _SEPARATORS.sub("-", name.strip()).lower()


def unfit_alias(name: str) -> str:
    """The reason why `name`, as it was written, can't be an alias; empty if it can.

    Aliases are ASCII, so that none looks like another, and words, so that they can stand in lists.
    """
    unfit = dict.fromkeys(map(ascii, _UNFIT_IN_ALIAS.findall(name)))
    if name and not unfit:
        return ""
    return (
        "expected ASCII letters, digits, '_', '-', '.' and '+'; got "
        f"{', '.join(unfit) or 'nothing'}"
    )


def split_name(name: str) -> tuple[str | None, str]:
    """Provider and alias of `"provider:alias"`, folded; without a colon the provider is None."""
    provider, colon, alias = name.strip().rpartition(":")
    if not colon:
        return None, normalize_alias(alias)
    return provider_name(provider), normalize_alias(alias)


def provider_name(name: str) -> str:
    """The provider that a user's text names: a distribution, folded, or `IN_PROCESS`. Both
    distributions of core are the provider of the built-ins.
    """
    if name == IN_PROCESS:
        return name
    folded = normalize_distribution(name)
    if folded == TRAINING:
        return DISTRIBUTION
    return folded
