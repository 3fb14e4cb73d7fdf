"""The user's module, called in the way that the strategy needs."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import nn

from core.contract import ModuleError
from core.data import make_transfer
from core.fabric.delegation import delegates_to

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from core.fabric.processes import Processes

P = ParamSpec("P")
R = TypeVar("R")
_STEPS = frozenset({"training_step", "validation_step", "test_step", "predict_step"})


@delegates_to("module", nn.Module)
class FabricModule(nn.Module):
    """The module that `fabric.setup` returns: calls go through the strategy's wrapper, in the
    precision's formats.

    Everything else is the user's module: parameters and their names, `state_dict()`, hooks,
    attributes, `train()`. A copy (`copy.deepcopy`, pickle) is a copy of the user's module, which
    calls its own weights.

    Attributes:
        module: the user's own.
        wrapped: the strategy's wrapper of it; may be the same.
        taken: names of other methods than `forward` that were taken, to be called.
    """

    module: nn.Module
    wrapped: nn.Module
    taken: set[str]

    def __init__(self, module: nn.Module, wrapped: nn.Module, fabric: Processes) -> None:
        """Wrap a module that the strategy of `fabric` has set up."""
        # Without nn.Module's own state: there is one set of parameters, and it is the user's
        # module's. It holds Fabric, since a Fabric that is gone lets go of its models.
        vars(self).update(
            module=module,
            wrapped=wrapped,
            taken=set(),
            _fabric=fabric,
            _forward_methods=set(_STEPS),
            # A DTensor has placements: the strategy shards in place, without a wrapper.
            _is_in_parts=any(hasattr(each, "placements") for each in module.parameters()),
        )
        vars(self)["_run"] = self._prepare("forward")

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Run the user's `forward`, with its hooks."""
        return self._run(*args, **kwargs)

    def forward(self, *args: object, **kwargs: object) -> Any:
        """The same as calling the module."""
        return self._run(*args, **kwargs)

    def mark_forward_method(self, method: str | Callable[..., object]) -> None:
        """Make this method of the user's module run as `forward` does from now on.

        Methods that compute a loss by other ways than `forward` need it: what happens outside of
        the strategy's wrapper is not synchronized. Where parameters are kept in parts, all need it
        that run layers. `training_step`, `validation_step`, `test_step` and `predict_step` are
        marked already.

        Args:
            method: its name, or the method itself.

        Raises:
            ModuleError: the user's module has no such method.
        """
        name = str(getattr(method, "__name__", method))
        if not callable(getattr(self.module, name, None)):
            raise ModuleError(
                f"mark_forward_method({name!r}): {type(self.module).__name__} has no method of "
                "this name. Name one of those that you call on the model, as in 'generate'."
            )
        self._forward_methods.add(name)
        vars(self).pop(name, None)

    def __getattr__(self, name: str) -> Any:
        attributes = vars(self)
        value = getattr(attributes["module"], name)
        if name in attributes["_forward_methods"]:
            # Kept as an attribute, which Python finds before it comes here again.
            value = attributes[name] = self._prepare(name)
            attributes["taken"].add(name)
        # A method of the user that isn't marked may run layers outside of the wrapper.
        elif getattr(value, "__self__", None) is attributes["module"]:
            if attributes["wrapped"] is not attributes["module"]:
                return self._guard(name, value)
            if attributes["_is_in_parts"]:
                return self._explained(name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.module, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self.module)})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.module!r})"

    def __deepcopy__(self, memo: dict[int, object]) -> nn.Module:
        return copy.deepcopy(self.module, memo)

    def __copy__(self) -> nn.Module:
        return copy.copy(self.module)

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        # By a function with a name, which pickle asks for.
        return _same, (self.module,)

    def _prepare(self, name: str) -> Callable[..., Any]:
        """Make the callable for a method, with nothing in between that isn't needed."""
        strategy = self._fabric.strategy
        call: Callable[..., Any] = strategy.step_callable(name, self.module)
        context = strategy.forward_context()
        if context is not None:
            call = _within(context, call)
        if strategy.precision_plugin.converts_input:
            convert = make_transfer(strategy.root_device, strategy.precision_plugin.convert_input)
            call = _converting(convert, call)
        return call

    def _guard(self, name: str, method: Callable[P, R]) -> Callable[P, R]:
        """Run a method, and refuse a forward with gradients inside it: those would stay on this
        rank.
        """

        @functools.wraps(method)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            parts = set(map(id, self.module.modules()))

            def refuse(part: nn.Module, inputs: object) -> None:
                if id(part) in parts and torch.is_grad_enabled():
                    raise ModuleError(
                        f"{type(self.module).__name__}.{name}() computes with gradients, which "
                        f"{type(self._fabric.strategy).__name__} can't see: they would stay on "
                        f"this rank. Call model.mark_forward_method({name!r}) once after setup, or "
                        "use torch.no_grad()."
                    )

            # A hook of all modules for this one call: hooks on each part would cost every other
            # forward.
            with nn.modules.module.register_module_forward_pre_hook(refuse):
                return method(*args, **kwargs)

        return guarded

    def _explained(self, name: str, method: Callable[P, R]) -> Callable[P, R]:
        """Run a method, and say what to do if it comes upon a part of a parameter that wasn't
        gathered.
        """

        @functools.wraps(method)
        def explained(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(*args, **kwargs)
            except RuntimeError as error:
                if "mixed torch.Tensor and DTensor" not in str(error):
                    raise
                raise ModuleError(
                    f"{type(self.module).__name__}.{name}() runs layers whose parameters "
                    f"{type(self._fabric.strategy).__name__} keeps in parts, and gathers for "
                    f"`forward` alone. Call model.mark_forward_method({name!r}) once after setup; "
                    "it is then called on all ranks."
                ) from error

        return explained


def _within(context: AbstractContextManager[object], call: Callable[P, R]) -> Callable[P, R]:
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with context:
            return call(*args, **kwargs)

    return run


def _converting(convert: Callable[[object], Any] | None, call: Callable[P, R]) -> Callable[P, R]:
    assert convert is not None

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return call(*convert(args), **convert(kwargs))

    return run


def _same(module: nn.Module) -> nn.Module:
    return module
