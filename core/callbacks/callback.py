"""The base of all callbacks."""

from __future__ import annotations

from typing import Any

from core.contract.hookspecs import EventHooks


class Callback(EventHooks):
    """Something that happens around training, apart from the research code. Meant to be subclassed.

    Override the hooks that you need (`core.contract.EventHooks` lists them in the order in which they happen); one that
    isn't overridden is never called and costs nothing. All ranks call every hook. A hook may also be an attribute of
    the instance, set in `__init__`, for a callback that needs it with some arguments only.
    """

    runs_last: bool = False
    """Called after all others and the module: what judges or saves the outcome wants to see everything done."""

    @property
    def state_key(self) -> str:
        """Under which name the state is kept in a checkpoint; must differ between two callbacks of one trainer."""
        return type(self).__qualname__

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: plain types, tensors and arrays. The same on all ranks."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""

    @property
    def keeps_state(self) -> bool:
        """Whether anything of this callback is kept in a checkpoint."""
        kind = type(self)
        return any(
            getattr(kind, name) is not getattr(Callback, name)
            for name in ("state_dict", "load_state_dict", "on_save_checkpoint", "on_load_checkpoint")
        )

    def _key_with(self, **options: Any) -> str:
        """A state key that tells callbacks of one class apart by their options."""
        return f"{type(self).__qualname__}{options}"
