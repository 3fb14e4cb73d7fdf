"""The canonical form of an optimizer's state: torch's own, with parameter names where torch counts.

A position says nothing under another world size or strategy, a name does. `param_groups` hold lists
of names, and `state` is keyed by name; everything else is as `torch.optim.Optimizer.state_dict`
gives it.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from core.contract.errors import CheckpointError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from core.session.module_handle import ModuleHandle


def to_named(state: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Replace positions by names.

    Args:
        state: an optimizer's `state_dict()`.
        names: names of its parameters, group after group, in the order of `param_groups`.
    """
    return with_names(state, names.__getitem__)


def with_names(state: Mapping[str, Any], name_of: Callable[[Any], Any]) -> dict[str, Any]:
    """The state with `name_of(name)` in the place of each parameter's name, or position."""
    groups = [
        {**group, "params": list(map(name_of, group["params"]))} for group in state["param_groups"]
    ]
    entries = {name_of(name): entry for name, entry in state["state"].items()}
    return {**state, "state": entries, "param_groups": groups}


def to_positional(
    state: Mapping[str, Any], names: Sequence[str], group_sizes: Sequence[int]
) -> dict[str, object]:
    """Replace names by positions of the optimizer at hand, for its `load_state_dict`.

    Parameters may stand in another order than when they were saved, but in the same groups. A state
    of another program may have positions already; then the order counts.

    Args:
        state: by names.
        names: of the optimizer's parameters, group after group.
        group_sizes: number of parameters in each of its groups.

    Raises:
        CheckpointError: the groups hold other parameters than the optimizer's do.
    """
    there = {
        name: index for index, group in enumerate(state["param_groups"]) for name in group["params"]
    }
    if there.keys() == set(range(len(names))):  # positions, as torch itself saves them
        return dict(state)
    groups_here = [index for index, size in enumerate(group_sizes) for _ in range(size)]
    here = dict(zip(names, groups_here, strict=True))
    for name in sorted(there.keys() ^ here.keys(), key=str):
        where = "not in the checkpoint"
        if name in there:
            where = "in the checkpoint, not in the optimizer"
        raise CheckpointError(
            f"The optimizer holds {len(names)} parameters and its saved state {len(there)}; "
            f"{name!r} is {where}. Build the optimizer over the same parameters as when the "
            "checkpoint was written."
        )
    # torch goes by positions, so that a parameter in another group would get another one's state.
    for name in names:
        if here[name] != there[name]:
            raise CheckpointError(
                f"The optimizer has {len(group_sizes)} parameter group(s) and its saved state "
                f"{len(state['param_groups'])}; {name!r} is in group {here[name]}, and was in "
                f"group {there[name]}. Build the optimizer with the same groups, in the same "
                "order, as when the checkpoint was written."
            )
    positional = with_names(state, {name: index for index, name in enumerate(names)}.__getitem__)
    # torch pairs a group's saved positions with the group's own parameters in order: sorted, each
    # meets itself.
    for group in positional["param_groups"]:
        group["params"].sort()
    return positional


def fits(state: Mapping[str, Any], names: Sequence[str], group_sizes: Sequence[int]) -> bool:
    """True if `to_positional` accepts a state by names, or its description."""
    try:
        to_positional(state, names, group_sizes)
    except (CheckpointError, KeyError, TypeError):
        return False
    return True


def parameter_names(optimizer: Optimizer, modules: Sequence[Mapping[int, str]]) -> list[str]:
    """Names of an optimizer's parameters, group after group.

    Args:
        optimizer: of parameters that belong to the modules.
        modules: for each module its parameters' names by `id`. If the optimizer holds parameters of
            several modules, names of the n-th begin with `"n."`.

    Raises:
        ConfigurationError: a parameter belongs to none of the modules.
    """
    owners: dict[int, tuple[int, str]] = {}
    for index, names in enumerate(modules):
        for key, name in names.items():
            owners.setdefault(key, (index, name))
    found = []
    for parameter in parameters_of(optimizer):
        if id(parameter) not in owners:
            raise ConfigurationError(
                f"The optimizer holds a parameter of shape {tuple(parameter.shape)} that belongs "
                "to no module that was set up. Set up its module first, and build the optimizer "
                "from that module's parameters."
            )
        found.append(owners[id(parameter)])
    if len({index for index, _ in found}) > 1:
        return [f"{index}.{name}" for index, name in found]
    return [name for _, name in found]


def parameters_of(optimizer: Any) -> list[Any]:
    """Its parameters, group after group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def check_trained(
    optimizers: Iterable[Any], handles: Sequence[ModuleHandle], world_size: int = 1
) -> None:
    """Check that each optimizer has a parameter of a module: the steps of one without change
    nothing there.

    Warns of parameters of no module: ranks train them apart.

    Args:
        optimizers: the user's own.
        handles: the modules that were set up. A parameter of what wraps one counts as its own.
        world_size: number of ranks.

    Raises:
        ConfigurationError: an optimizer has none.
    """
    for optimizer in optimizers:
        held = parameters_of(optimizer)
        foreign = _foreign(held, handles)
        if held and len(foreign) == len(held):
            names = " or ".join({type(handle.module).__name__: None for handle in handles})
            raise ConfigurationError(
                f"{type(optimizer).__name__} has none of the parameters of what was set up "
                f"({names or 'no module yet'}), so that its steps would change nothing there: it "
                "was made from another module, or the module was copied or replaced since. Make "
                "it from the parameters of the very module that you set up."
            )
        if world_size > 1:
            _warn_of_foreign(optimizer, foreign)


def check_later_groups(optimizer: Any, handles: Sequence[ModuleHandle]) -> Callable[[], None]:
    """Warn of parameters of no module in groups that are added from now on. Returns what undoes
    it.
    """
    add = optimizer.add_param_group

    def add_checked(group: dict[str, Any]) -> None:
        add(group)
        _warn_of_foreign(optimizer, _foreign(optimizer.param_groups[-1]["params"], handles))

    vars(optimizer)["add_param_group"] = add_checked
    return lambda: vars(optimizer).pop("add_param_group", None)


def _foreign(parameters: Sequence[Any], handles: Sequence[ModuleHandle]) -> list[Any]:
    known: set[int] = set()
    for handle in handles:
        known.update(handle.parameter_names, map(id, handle.wrapped.parameters()))
    return [parameter for parameter in parameters if id(parameter) not in known]


def _warn_of_foreign(optimizer: Any, foreign: Sequence[Any]) -> None:
    shapes = [str(tuple(each.shape)) for each in foreign if each.requires_grad]
    if shapes:
        warnings.warn(
            f"{type(optimizer).__name__} has {len(shapes)} parameter(s) of no module that was set "
            f"up (of shape {', '.join(shapes[:3])}). Each rank trains them by its own gradients, "
            "and checkpoints can't name them. Make them a part of the module, or set up their "
            "module before the optimizer.",
            stacklevel=2,
        )


def stepped_tensors(optimizers: Iterable[object]) -> Iterator[Tensor]:
    """Parameters of optimizers of torch, and what these keep for them; of DTensors the part that is
    here.
    """
    from torch.optim import Optimizer

    for optimizer in optimizers:
        if isinstance(optimizer, Optimizer):
            for parameter in parameters_of(optimizer):
                for value in (parameter, *optimizer.state.get(parameter, {}).values()):
                    if hasattr(value, "to_local"):
                        yield value.to_local()
                    elif hasattr(value, "data_ptr"):
                        yield value
