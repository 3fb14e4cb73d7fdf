"""A plan of cut layers, compared: blocks with whole ones, and gradients of parameters that every
rank has whole.
"""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from core import ModuleError
from core_parallel.mesh.placements import cut_axes, own_part
from core_parallel.modules import own_state
from core_parallel.modules.absent import is_absent
from core_parallel.modules.comparing import NoDropout, are_close, no_constants, random_states
from core_parallel.modules.own_draws import OwnDraws
from core_parallel.tensor import adapters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from torch.distributed.tensor.parallel import ParallelStyle
    from torch.utils.hooks import RemovableHandle

_OF_OUTPUTS = {torch.float64: 1e-8, torch.float32: 1e-3}
_OF_GRADIENTS = {torch.float64: 1e-7, torch.float32: 1e-2}
_CURE = (
    "Between a layer that is cut by columns and one by rows each rank has a part of the values: "
    "only what treats each of them alone may stand there. "
)


def blocks_of(module: nn.Module, styles: Mapping[str, ParallelStyle]) -> dict[str, nn.Module]:
    """The smallest modules, by name, that are given whole values and return whole ones, around the
    layers of a plan.

    Args:
        module: the user's.
        styles: by names in it.
    """
    found: dict[str, nn.Module] = {}
    for name in styles:
        owner = name
        while owner and not _is_closed(owner, module.get_submodule(owner), styles):
            owner = owner.rpartition(".")[0]
        if owner not in ("", name):  # a layer that is whole outside promises nothing
            found[owner] = module.get_submodule(owner)
    return {
        name: one
        for name, one in found.items()
        if not any(name.startswith(f"{other}.") for other in found)
    }


def draw_apart(
    blocks: Mapping[str, nn.Module], styles: Mapping[str, ParallelStyle], group: Any
) -> None:
    """Give each rank of a tensor group random numbers of its own between layers cut by columns and
    by rows.

    Args:
        blocks: by name, see `blocks_of`.
        styles: of layers in them, by names.
        group: the ranks.
    """
    for name, block in blocks.items():
        own = OwnDraws(group.rank())
        block.register_forward_hook(own.end, always_call=True)
        for layer, style in styles.items():
            if not layer.startswith(f"{name}.") or adapters.is_beside(layer):
                continue
            part = block.get_submodule(adapters.around(layer).removeprefix(f"{name}."))
            if (
                type(style) is ColwiseParallel
                and style.use_local_output
                and not _is_whole(style.output_layouts)
            ):
                if adapters.around(layer) != layer:
                    # it may drop what it is given, which is whole
                    part.register_forward_pre_hook(own.end)
                part.register_forward_hook(partial(_begin, own))
            if type(style) is RowwiseParallel and not _is_whole(style.input_layouts):
                part.register_forward_hook(own.end)


def _begin(own: OwnDraws, module: nn.Module, args: Any, output: Tensor) -> None:
    own.begin(module, output.device)


def _is_closed(name: str, module: nn.Module, styles: Mapping[str, ParallelStyle]) -> bool:
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return False
    inside = [style for one, style in styles.items() if f"{one}.".startswith(f"{name}.")]
    plain = [style for style in inside if type(style) in (ColwiseParallel, RowwiseParallel)]
    opens = any(
        isinstance(one, ColwiseParallel) and not _is_whole(one.output_layouts) for one in plain
    )
    closes = any(
        isinstance(one, RowwiseParallel) and not _is_whole(one.input_layouts) for one in plain
    )
    return opens == closes and len(plain) == sum(not _keeps_whole(one) for one in inside)


def _is_whole(layouts: Any) -> bool:
    return all(isinstance(one, Replicate) for one in layouts)


def _keeps_whole(style: ParallelStyle) -> bool:
    return getattr(style, "keeps_whole", False)


@contextmanager
def compared(
    blocks: Mapping[str, nn.Module],
    group: Any,
    kept_random: Callable[[], AbstractContextManager[Any]],
) -> Iterator[None]:
    """All ranks of a tensor group. A context in which the next call of each block is compared with
    that of the whole.

    Each gathers a block's parameters, and runs it twice without gradients: with its cut layers, and
    whole.

    Args:
        blocks: by name, see `blocks_of`.
        group: the ranks.
        kept_random: makes a context after which random numbers go on as before.

    Raises:
        ModuleError: the results differ.
    """
    handles: dict[str, RemovableHandle] = {}

    def looking(name: str) -> Callable[..., None]:
        def look(module: nn.Module, args: Any, kwargs: Any) -> None:
            if name in handles:
                handles.pop(name).remove()
                with (
                    kept_random(),
                    own_state.kept(module),
                    torch.no_grad(),
                    NoDropout() as dropouts,
                ):
                    _compare(name, module, args, kwargs, group, dropouts)

        return look

    for name, one in blocks.items():
        if not any(
            is_absent(parameter) or "expert" in cut_axes(parameter)
            for parameter in one.parameters()
        ):
            handles[name] = one.register_forward_pre_hook(looking(name), with_kwargs=True)
    try:
        # Who hasn't imported torch's compiler has compiled nothing.
        with (
            torch.compiler.set_stance("force_eager")
            if "torch._dynamo" in sys.modules
            else nullcontext()
        ):
            yield
    finally:
        for handle in handles.values():
            handle.remove()


def _compare(
    name: str, module: nn.Module, args: Any, kwargs: Any, group: Any, dropouts: NoDropout
) -> None:
    with no_constants(module):
        given, named = tree_map(_apart, (args, kwargs))
        cut, before = tree_leaves(module.forward(*given, **named)), random_states(module)
        of_parts, dropouts.seen = dropouts.seen, []
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        whole_tensors = {
            key: one.full_tensor() if isinstance(one, DTensor) else one
            for key, one in tensors.items()
        }
        try:
            with _without_exchanges(module.modules()):
                whole = tree_leaves(
                    functional_call(module, whole_tensors, *tree_map(_apart, (args, kwargs)))
                )
        except Exception:  # such as a block that counts on its part of the heads
            return
    dropped = zip(of_parts, dropouts.seen, strict=False)
    if any(is_own and shape == of_whole for (shape, is_own), (of_whole, _) in dropped):
        raise ModuleError(
            f"{type(module).__name__} {name!r} drops some of what all ranks of a tensor group have "
            "whole, between its layers that are cut by columns and by rows, where each rank draws "
            "a mask of its own. Do that before the first of them or behind the last, or leave both "
            "out of the plan."
        )
    if random_states(module) != before:
        return  # it draws numbers of its own
    device_type = cut[0].device.type if cut else "cpu"
    tolerances = {} if torch.is_autocast_enabled(device_type) else _OF_OUTPUTS
    pairs = [
        (_full(one), _own_part(_full(other), one.shape, group))
        for one, other in zip(cut, whole, strict=False)
        if isinstance(one, Tensor)
    ]
    is_wrong = any(not are_close(one, other, tolerances) for one, other in pairs)
    mark = torch.tensor([float(is_wrong)], device=pairs[0][0].device if pairs else None)
    dist.all_reduce(mark, dist.ReduceOp.MAX, group=group)
    if mark.item():
        raise ModuleError(
            f"{type(module).__name__} {name!r} computes other values with the layers that the "
            f"tensor plan cuts than whole. {_CURE}A norm, a softmax, a choice of the largest or a "
            "sum over them isn't: cut the layer before it by 'colwise_gather_output' and give the "
            "one after it 'rowwise_split_input', or leave both out of the plan."
        )


def _apart(leaf: Any) -> Any:
    """A copy of an argument, into which a call may write; None for a cache of keys, to which a call
    would add.
    """
    if isinstance(leaf, Tensor):
        return leaf.detach().clone()
    return None if hasattr(leaf, "get_seq_length") else copy.copy(leaf)


def _full(tensor: Any) -> Tensor:
    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole


def _own_part(whole: Tensor, shape: torch.Size, group: Any) -> Tensor:
    """This rank's part of a value, if the module returns parts of it, such as the attention of its
    own heads.
    """
    size = group.size()
    cut = (
        [dim for dim, length in enumerate(whole.shape) if length != shape[dim]]
        if len(shape) == whole.ndim
        else []
    )
    if len(cut) != 1 or shape[cut[0]] * size != whole.shape[cut[0]]:
        return whole
    part: Tensor = whole.chunk(size, cut[0])[group.rank()]
    return part


@contextmanager
def _without_exchanges(modules: Iterable[nn.Module]) -> Iterator[None]:
    """A context in which modules are called without the hooks that torch and this package have put
    on cut layers.
    """
    kept = [
        (vars(one), name, vars(one)[name])
        for one in modules
        for name in ("_forward_pre_hooks", "_forward_hooks")
    ]
    for attributes, name, hooks in kept:  # others in their place: what is compiled looks at these
        attributes[name] = OrderedDict(
            (key, hook) for key, hook in hooks.items() if not _exchanges(hook)
        )
    try:
        yield
    finally:
        for attributes, name, hooks in kept:
            attributes[name] = hooks


def _exchanges(hook: Any) -> bool:
    owner = getattr(getattr(hook, "func", hook), "__module__", None) or ""
    return owner.startswith(("torch.distributed", "core_parallel"))


def refuse_unlike_gradients(module: nn.Module, group: Any) -> None:
    """All ranks of a tensor group, after backward. Refuse gradients that must be alike, and aren't.

    Raises:
        ModuleError: with the parameter.
    """
    named = [
        (name, own_part(one.grad.detach()))
        for name, one in module.named_parameters()
        if one.grad is not None
        and not one.is_meta
        and "tensor" not in cut_axes(one)
        and "expert" not in cut_axes(one)
    ]
    if not named:
        return
    numbers = torch.stack([_described(one) for _, one in named])
    largest, least = numbers.clone(), numbers.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    dist.all_reduce(least, dist.ReduceOp.MIN, group=group)
    spread = (largest - least).abs().amax(1).tolist()
    scales = torch.maximum(largest[:, 0], numbers.new_tensor(1e-30)).tolist()
    for (name, gradient), differs, scale in zip(named, spread, scales, strict=True):
        if differs > _OF_GRADIENTS.get(gradient.dtype, 1e-1) * scale:
            raise ModuleError(
                f"Ranks of a tensor group have other gradients of {name!r}, which all of them have "
                "whole: it is applied to a part of the values on each, and they would go apart. "
                "Give its module 'replicated_with_grad_allreduce' in the plan: "
                f"{{{name.rpartition('.')[0]!r}: "
                "'replicated_with_grad_allreduce'}."
            )


def _described(gradient: Tensor) -> Tensor:
    """The norm of a gradient, and a sum of at most that size."""
    wide = gradient.to(torch.float32 if gradient.device.type == "mps" else torch.float64)
    total = wide.sum() / max(1, gradient.numel()) ** 0.5
    return torch.stack([wide.norm(), total])
