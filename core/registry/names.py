"""The names that users and metadata write, folded to one form."""

from __future__ import annotations

import re

from core.contract.spec import normalize_alias

_SEPARATORS = re.compile(r"[-_.]+")
_FIT_ALIAS = re.compile(r"[^\s:,]+")

IN_PROCESS = "<in-process>"
"""Name of the provider of what the running process has registered. No distribution can be called that."""


def normalize_distribution(name: str) -> str:
    """Fold the name of a distribution to its one written form (PEP 503): `"Core_Acme"` becomes `"core-acme"`."""
    return _SEPARATORS.sub("-", name.strip()).lower()


def fit_alias(alias: str) -> bool:
    """Whether `alias` can stand in a list and in a qualified name: a word without colon or comma."""
    return _FIT_ALIAS.fullmatch(alias) is not None


def split_name(name: str) -> tuple[str | None, str]:
    """Provider and alias of `"provider:alias"`, folded; without a colon the provider is None."""
    provider, colon, alias = name.strip().rpartition(":")
    if not colon:
        return None, normalize_alias(alias)
    return provider if provider == IN_PROCESS else normalize_distribution(provider), normalize_alias(alias)
