"""A router by which a wrapper runs any method of the user's module as its forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    _Route: TypeAlias = tuple[str, Callable[..., Any] | None, Callable[[], None] | None]


class MethodRouter(nn.Module):
    """Stands between a wrapper such as DDP, which acts in its `forward`, and the user's module,
    whose step has a name.

    The user's module is left as it is: a copy of it calls its own methods. Attributes that the
    router doesn't have are the module's.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._route: _Route = ("forward", None, None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method that was routed last; the module itself at first."""
        # of a replica its own, and cheaper than the attribute
        module: Any = self._modules["module"]
        name, replacement, after = self._route
        if replacement is None:
            replacement = module
            if name != "forward":
                replacement = getattr(module, name)
        output = replacement(*args, **kwargs)
        if after is not None:
            after()
        return output

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def route(
        self,
        wrapper: nn.Module,
        name: str,
        *,
        replacement: Callable[..., Any] | None = None,
        after: Callable[[], None] | None = None,
    ) -> Callable[..., Any]:
        """A function that runs a method of the user's module inside the forward of `wrapper`.

        Args:
            wrapper: a module around this router.
            name: of the method; `"forward"` calls the module, with its hooks.
            replacement: called in place of the method, such as the same one compiled.
            after: called when the method has returned, still inside the wrapper's forward.
        """
        route = (name, replacement, after)
        attributes = self.__dict__  # nn.Module.__setattr__ would cost a microsecond a step

        def call(*args: Any, **kwargs: Any) -> Any:
            attributes["_route"] = route
            return wrapper(*args, **kwargs)

        return call
