"""The environment's choice of plugins: `CORE_PLUGINS` and `CORE_DISABLE_PLUGINS`.

Both are lists, split at commas, semicolons or blanks, of distributions (`core-acme`), aliases
(`acme`) or qualified names (`core-acme:acme`). They are applied before anything is imported.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from core.contract.spec import Spec, normalize_alias
from core.registry.builtins import CORE
from core.registry.names import provider_name, split_name
from core.text.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ALLOW = "CORE_PLUGINS"
BLOCK = "CORE_DISABLE_PLUGINS"


class Selection(NamedTuple):
    """The two lists.

    Attributes:
        allowed: what `CORE_PLUGINS` names. None: it isn't set, and everything is let in. Empty:
            nothing is.
        blocked: what `CORE_DISABLE_PLUGINS` names.
    """

    allowed: tuple[str, ...] | None = None
    blocked: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Selection:
        """Read both variables."""
        allowed = None
        if ALLOW in environ:
            allowed = _names(environ[ALLOW])
        return cls(allowed, _names(environ.get(BLOCK, "")))

    def refusal(self, spec: Spec, *, installed: bool = True) -> str:
        """The reason why `spec` is kept out; empty if it isn't.

        Args:
            spec: what is offered.
            installed: whether by an installed plugin. The allow list is about those only.
        """
        # The block list wins over the allow list.
        for name in self.blocked:
            if matches(name, spec):
                return f"{BLOCK} names {name!r}"
        if (
            installed
            and self.allowed is not None
            and not any(matches(name, spec) for name in self.allowed)
        ):
            return f"{ALLOW} does not name it"
        return ""

    def unmatched(self, specs: Iterable[Spec]) -> Iterator[str]:
        """A sentence for each name in the lists that nothing installed answers to."""
        specs = tuple(specs)
        for variable, names in ((ALLOW, self.allowed or ()), (BLOCK, self.blocked)):
            for name in names:
                if any(matches(name, spec) for spec in specs):
                    continue
                forms = {form for spec in specs for form in (spec.provider, spec.alias)}
                if ":" in name:
                    forms = {spec.qualified_name for spec in specs}
                near = did_you_mean(name.lower(), forms - {CORE}, count=3)
                yield (
                    f"{variable} names {name!r}, which is neither an installed plugin nor an "
                    f"alias of one.{near}"
                )


def matches(name: str, spec: Spec) -> bool:
    """True if `name`, a distribution, an alias or both with a colon between, is about `spec`."""
    if ":" in name:
        return split_name(name) == (spec.provider, spec.alias)
    return spec.provider == provider_name(name) or normalize_alias(name) == spec.alias


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, re.split(r"[,;\s]+", text))))
