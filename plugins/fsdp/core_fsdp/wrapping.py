"""The choice of the modules that are units: gathered, computed and freed together."""

from __future__ import annotations

import functools
import inspect
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp.wrap import CustomPolicy, ModuleWrapPolicy, transformer_auto_wrap_policy
from torch.distributed.tensor import DTensor

from core import ConfigurationError, ModuleError
from core.activations import save_activations
from core.strategies import find_units

_log = logging.getLogger(__name__)
_CALLED_WITH = ("module", "recurse", "nonwrapped_numel")
_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)

Policy = (
    Literal["units"]
    | Callable[..., Any]
    | CustomPolicy
    | ModuleWrapPolicy
    | Iterable[type[nn.Module]]
)


def choose_modules(root: nn.Module, policy: Policy | None, option: str) -> list[nn.Module]:
    """The modules below `root` that a policy selects, each before those that contain it.

    Args:
        root: is never among them.
        policy: `"units"`, which `core.strategies.find_units` finds; layer classes; a predicate
            `(module) -> bool`; or one of torch's policies: an object of
            `torch.distributed.fsdp.wrap`, or a function
            `(module, recurse, nonwrapped_numel) -> bool`.
        option: that the user wrote it for.

    Raises:
        ConfigurationError: the policy is of no known form, or the user's own and selects nothing.
    """
    if policy is None:
        return []
    if policy == "units":
        found = find_units(root)
        _log.info("%s: %s.", option, found)
        return list(found.named.values())[::-1]
    selected = _select(root, policy, option)
    # `modules()` gives a module before its children.
    chosen = [
        module
        for module in reversed(list(root.modules()))
        if module in selected and module is not root
    ]
    if not chosen:
        held = {type(module).__name__ for module in root.modules()} - {type(root).__name__}
        raise ConfigurationError(
            f"{option} selects no module of {type(root).__name__}: it holds "
            f"{', '.join(sorted(held)[:12])}."
        )
    return chosen


def _select(root: nn.Module, policy: Any, option: str) -> set[nn.Module]:
    if isinstance(policy, CustomPolicy):
        return _select_custom(root, policy, option)
    if isinstance(policy, Iterable):
        classes = tuple(policy)
        if all(_is_layer_class(item) for item in classes):
            return {module for module in root.modules() if isinstance(module, classes)}
    elif _is_function(policy):
        if len(_needed(policy)) == 1:
            return {module for module in root.modules() if policy(module)}
        policy = _bound(root, policy, option)
        selected: set[nn.Module] = set()
        _recurse(root, policy, selected, is_root=True)
        return selected
    raise ConfigurationError(
        f"{option}={policy!r}: expected 'units', a set of layer classes such as "
        f"{{TransformerBlock}}, or a function (module, recurse, nonwrapped_numel) -> bool, such as "
        "those of torch.distributed.fsdp.wrap."
    )


def _is_layer_class(item: Any) -> bool:
    return isinstance(item, type) and issubclass(item, nn.Module)


def _is_function(policy: Any) -> bool:
    return callable(policy) and not isinstance(policy, type)


def _select_custom(root: nn.Module, policy: CustomPolicy, option: str) -> set[nn.Module]:
    selected = policy._run_policy(root, ignored_modules=set(), root_kwargs={})
    if with_options := [(module, options) for module, options in selected.items() if options]:
        module, options = with_options[0]
        raise ConfigurationError(
            f"{option}: the policy gives {type(module).__name__} options of its own "
            f"({', '.join(options)}), which FSDPStrategy doesn't take. Return True or False; for "
            "units of another kind call fully_shard(...) on them in configure_model."
        )
    return set(selected)


def _needed(policy: Callable[..., Any]) -> list[str]:
    """Names of the arguments that a policy needs; `partial` has bound some of those that torch
    passes.
    """
    parameters = inspect.signature(policy).parameters.values()
    needed = [each for each in parameters if each.default is each.empty]
    return [
        each.name for each in needed if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]


def _bound(root: nn.Module, policy: Callable[..., Any], option: str) -> Callable[..., Any]:
    """A policy without further arguments; transformer layers are found if no class is named.

    Raises:
        ConfigurationError: it needs something else, or there are no such layers.
    """
    missing = [name for name in _needed(policy) if name not in _CALLED_WITH]
    if not missing:
        return policy
    classes = _transformer_layers(root) if policy is transformer_auto_wrap_policy else set()
    if classes:
        _log.info(
            "%s: the layers are of %s.",
            option,
            ", ".join(sorted(kind.__name__ for kind in classes)),
        )
        return functools.partial(policy, transformer_layer_cls=classes)
    name = getattr(policy, "__name__", repr(policy))
    searched = policy is transformer_auto_wrap_policy
    looked = (
        f", and {type(root).__name__} has no list of layers with attention in which to find it"
        * searched
    )
    raise ConfigurationError(
        f"{option}={name} is called with {', '.join(_CALLED_WITH)}, and needs {missing[0]!r} "
        f"too{looked}. Bind it: functools.partial({name}, "
        f"{missing[0]}={'{TransformerBlock}' if searched else '...'})."
    )


def _transformer_layers(root: nn.Module) -> set[type[nn.Module]]:
    """Classes of what stands in a list of layers and holds attention; of nested lists the
    outermost.
    """
    found: set[type[nn.Module]] = set()
    pending = [root]
    while pending:
        module = pending.pop()
        layers = {
            child
            for child in module.children()
            if isinstance(module, _LISTS) and _holds_attention(child)
        }
        found |= {type(layer) for layer in layers}
        pending += [child for child in module.children() if child not in layers]
    return found


def _holds_attention(layer: nn.Module) -> bool:
    parts = [part for part in layer.modules() if part is not layer]
    return not isinstance(layer, _LISTS) and any(
        "attention" in type(part).__name__.lower() for part in parts
    )


def _recurse(
    module: nn.Module, policy: Callable[..., bool], selected: set[nn.Module], *, is_root: bool
) -> int:
    """Ask a torch policy as the old wrapper did; returns how many elements are in selected
    modules.
    """
    # As torch does: first whether to look inside, then, with what is left over there, whether to
    # wrap this one.
    numel = sum(parameter.numel() for parameter in module.parameters())
    if not policy(module=module, recurse=True, nonwrapped_numel=numel):
        return 0
    wrapped = sum(_recurse(child, policy, selected, is_root=False) for child in module.children())
    if is_root or not policy(module=module, recurse=False, nonwrapped_numel=numel - wrapped):
        return wrapped
    selected.add(module)
    return numel


def planned_beside(root: nn.Module, units: list[nn.Module]) -> list[nn.Module]:
    """The modules beside units, such as an embedding, that plans of transformers (`_fsdp_plan`)
    free after use.

    What they keep belongs to the unit of the whole.
    """
    inside = {part for unit in units for part in unit.modules()}
    planned = {
        owner.get_submodule(name): None
        for owner in root.modules()
        for name, word in (getattr(owner, "_fsdp_plan", None) or {}).items()
        if word == "free_full_weight" and name in dict(owner.named_modules())
    }
    return [one for one in planned if inside.isdisjoint(one.modules()) and one is not root]


def units_of(root: nn.Module, selected: list[nn.Module]) -> list[nn.Module]:
    """The selected modules that can be units by themselves.

    A container without a forward of its own, such as ModuleList, leaves its parameters to the unit
    around it. So does a module that shares a parameter with one outside of it: they have to be
    gathered together.
    """
    owners: dict[int, set[int]] = defaultdict(set)
    for module in root.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)].add(id(module))

    def is_closed(unit: nn.Module) -> bool:
        inside = {id(module) for module in unit.modules()}
        return all(owners[id(parameter)] <= inside for parameter in unit.parameters())

    return [module for module in selected if has_forward(module) and is_closed(module)]


def units_for_manual_optimization(root: nn.Module) -> list[nn.Module]:
    """The children of a module whose step runs several backwards: each is gathered and reduced by
    itself.

    The step itself can't be a unit, since its gradients would be reduced after it has used them.

    Raises:
        ModuleError: the module holds parameters that belong to no child.
    """
    if own := [name for name, _ in root.named_parameters(recurse=False)]:
        raise ModuleError(
            f"{type(root).__name__} has automatic_optimization = False and holds the parameter "
            f"{own[0]!r} itself. With manual optimization parameters are gathered by the submodule "
            "that uses them: put it into one."
        )
    units: list[nn.Module] = []
    for child in root.children():
        units += [child] if has_forward(child) else units_for_manual_optimization(child)
    return [unit for unit in units if next(unit.parameters(), None) is not None]


def has_forward(module: nn.Module) -> bool:
    """True if a module can be called, and so can be gathered when it is."""
    return type(module).forward is not nn.Module.forward and not isinstance(
        module, nn.ModuleList | nn.ModuleDict
    )


def sharded_units(root: nn.Module) -> list[FSDPModule]:
    """All units below and including `root`."""
    return [module for module in root.modules() if isinstance(module, FSDPModule)]


def is_sharded(root: nn.Module) -> bool:
    """True if a unit or a sharded parameter is in it."""
    return bool(sharded_units(root)) or any(
        isinstance(parameter, DTensor) for parameter in root.parameters()
    )


def check_all_sharded(root: nn.Module) -> None:
    """Refuse a module that is sharded in part: the gradients of the rest would be averaged by
    nobody.

    Raises:
        ModuleError: with the parameter that isn't.
    """
    for name, parameter in root.named_parameters():
        if parameter.requires_grad and not isinstance(parameter, DTensor):
            raise ModuleError(
                f"{name!r} of {type(root).__name__.removeprefix('FSDP')} isn't sharded, and other "
                "parameters are: each rank would train its own. If it has come into the module "
                "after an earlier set-up, put it in before, or make the module anew; where you "
                "call fully_shard yourself, call it on the whole module too."
            )


def checkpoint_activations(root: nn.Module, policy: Policy | None) -> Callable[[], None]:
    """All ranks. Compute the activations of selected layers again in backward, until that is
    undone.

    Returns:
        Undoes it.

    Raises:
        ConfigurationError: the units were meant, and there are none.
    """
    if policy is None:
        raise ConfigurationError(
            "activation_checkpointing=True means the units of auto_wrap_policy, which is None. "
            "Pass a set of layer classes to either of the two."
        )
    if policy == "units":
        find_units(root, asked_by="activation_checkpointing=True")
    chosen = choose_modules(root, policy, "activation_checkpointing")
    return save_activations(module for module in chosen if has_forward(module))


def check_parameters(root: nn.Module) -> None:
    """Refuse parameters that can't be sharded.

    Raises:
        ModuleError: one has no dimension, no element, or is sparse, or gets sparse gradients.
    """
    for name, parameter in root.named_parameters():
        if problem := _describe_problem(parameter):
            raise ModuleError(f"{name!r} of {type(root).__name__} is a parameter {problem}")
    for name, module in root.named_modules():
        if (
            isinstance(module, nn.Embedding | nn.EmbeddingBag)
            and module.sparse
            and module.weight.requires_grad
        ):
            raise ModuleError(
                f"{name!r} of {type(root).__name__} is {type(module).__name__}(sparse=True), whose "
                "sparse gradients can't be reduced to shards. Leave sparse out."
            )


_HOOKS = {
    "register_hook": "_backward_hooks",
    "register_post_accumulate_grad_hook": "_post_accumulate_grad_hooks",
}


def check_hooks(root: nn.Module, *methods: str) -> None:
    """Refuse hooks of parameters that see no gradient where ranks share a model, or a part of it.

    Args:
        root: the user's.
        methods: by which they have been registered; none are all.

    Raises:
        ModuleError: with the parameter's name.
    """
    for name, parameter in root.named_parameters():
        for method in methods or _HOOKS:
            hooks = getattr(parameter, _HOOKS[method], None) or {}
            # Those of core only refuse a gradient where nothing may learn.
            own = [
                hook
                for hook in hooks.values()
                if not str(getattr(hook, "__module__", "")).startswith("core.")
            ]
            if parameter.requires_grad and own:
                raise ModuleError(
                    f"{name!r} of {type(root).__name__.removeprefix('FSDP')} has a hook "
                    f"({method}), which would see no gradient, or a rank's part of it. Mask and "
                    "scale in forward, as in weight * mask + (weight * (1 - mask)).detach(); "
                    "change whole gradients in on_before_optimizer_step; leave steps to the "
                    "optimizer."
                )


def _describe_problem(parameter: nn.Parameter) -> str | None:
    if parameter.layout is not torch.strided:
        return (
            f"of layout {parameter.layout}, which can't be sharded. Hold it dense, or as a buffer."
        )
    if parameter.ndim == 0:
        return (
            "of shape (), which has no dimension to be sharded along. Give it one: "
            "nn.Parameter(torch.ones(1))."
        )
    if parameter.numel() == 0:
        return (
            f"of shape {tuple(parameter.shape)}, which has no element to be sharded. Leave it out."
        )
    return None


def check_formats(root: nn.Module) -> None:
    """Refuse units whose trainable parameters have several formats: torch gathers and reduces them
    as one.

    Raises:
        ModuleError: with the first two of them.
    """
    for unit in root.modules():
        if not isinstance(unit, FSDPModule):
            continue
        names: dict[torch.dtype, str] = {}
        for name, parameter in _own_parameters(unit):
            if parameter.requires_grad:
                names.setdefault(parameter.dtype, name)
        if len(names) > 1:
            (dtype, name), (other, another) = list(names.items())[:2]
            raise ModuleError(
                f"{name!r} of {type(unit).__name__.removeprefix('FSDP')} is {dtype}, and "
                f"{another!r} is {other}: the parameters of a unit are gathered together, and need "
                "one format. Convert them, or name the layer that holds the others in "
                "auto_wrap_policy."
            )


def _own_parameters(unit: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that no unit inside of the module has."""
    for name, parameter in unit.named_parameters(recurse=False):
        yield prefix + name, parameter
    for name, child in unit.named_children():
        if not isinstance(child, FSDPModule):
            yield from _own_parameters(child, f"{prefix}{name}.")
