"""The protocol of strategies that know before a run which rank will have what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn


@runtime_checkable
class ExplainsLayout(Protocol):
    """A strategy that knows before a run which rank will have what: `core explain` shows it."""

    def explain_layout(self, module: nn.Module | None) -> Iterable[tuple[str, str, str]]:
        """One process, without a group, before a run; `check` has passed. The rows about the
        layout.

        Args:
            module: the user's, which may be on the meta device, and isn't used any more; None to
                explain what holds for any.

        Returns:
            Rows of text, as `core.resolve.Decision` has them: what it is about, what is so, and the
            reason.

        Raises:
            CoreError: the module can't be trained so, as in a run.
        """
