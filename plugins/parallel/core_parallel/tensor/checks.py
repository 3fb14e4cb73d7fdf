"""A plan of cut layers, checked: what is computed between them, and gradients of what all ranks
have whole.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.utils._pytree import tree_leaves

from core import ModuleError
from core.contract import refuse
from core_parallel.following.marks import Mark, Mixed, PartAlong, mark_of, place_of, put
from core_parallel.following.mode import Following, is_in_backward
from core_parallel.mesh.placements import cut_axes
from core_parallel.modules import graphs
from core_parallel.modules.absent import is_absent
from core_parallel.modules.compiled_parts import uncompiled
from core_parallel.modules.own_draws import OwnDraws
from core_parallel.modules.parted_tensor import PartedTensor
from core_parallel.tensor import adapters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.distributed.tensor.parallel import ParallelStyle
    from torch.utils.hooks import RemovableHandle

    from core_parallel.following.operations import Operation

_AXIS = "tensor"
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
        is_closed = bool(owner) or _is_closed("", module, styles)
        if owner != name and is_closed:  # a layer that is whole outside promises nothing
            found[owner] = module.get_submodule(owner)
    return {
        name: one
        for name, one in found.items()
        if not any(other != name and _is_within(name, other) for other in found)
    }


def _is_within(name: str, owner: str) -> bool:
    return not owner or name.startswith(f"{owner}.")


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
            if not _is_within(layer, name) or adapters.is_beside(layer):
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


class _FollowedParts(Following):
    """Following along a tensor group, on whose ranks what is whole has the same gradient.

    Args:
        module: the user's.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(_AXIS, _CURE)
        self._module = module

    def result_of(self, call: Operation) -> Any:
        """The mark of an operation's results.

        Raises:
            ModuleError: it computes with a part and with what is whole and learns, whose gradient
                would be a term on each rank.
        """
        mark = super().result_of(call)
        has_gradients = torch.is_grad_enabled() and isinstance(mark, PartAlong)
        if has_gradients and call.results[0].is_floating_point():
            for one in call.given:
                if one.requires_grad and mark_of(one, _AXIS) is None:
                    self._refuse_terms(one)
        return mark

    def _refuse_terms(self, whole: Tensor) -> None:
        leaf = _unsummed_leaf(whole)
        if leaf is None:
            return
        named = self._module.named_parameters()
        name = next((name for name, one in named if one is leaf), None)
        if name is None:
            what, cure = "a tensor", "Leave the layers around this out of the plan."
        else:
            owner, what = name.rpartition(".")[0], repr(name)
            cure = (
                "Give its module 'replicated_with_grad_allreduce' in the plan: "
                f"{{{owner!r}: 'replicated_with_grad_allreduce'}}."
            )
        text = (
            f"Ranks of a tensor group would have other gradients of {what}, which all of them have "
            f"whole: it meets a part of the values on each, and they would go apart. {cure}"
        )
        refuse(ModuleError(text), axis=_AXIS)


def _unsummed_leaf(whole: Tensor) -> Tensor | None:
    """A leaf behind a tensor whose gradient isn't added up over ranks on its way there."""
    if whole.grad_fn is None:
        return whole
    waiting, seen = [whole.grad_fn], {whole.grad_fn}
    while waiting:
        node: Any = waiting.pop()
        if graphs.is_of_leaf(node):
            leaf: Tensor = node.variable
            return leaf
        placements = getattr(node, "grad_placements", None) or ()  # of a DTensor, made local
        _, leads = getattr(node, "border", (None, None))  # of an exchange
        if leads is False or any(isinstance(one, Partial) for one in placements):
            continue
        following = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= following
        waiting += following
    return None


@contextmanager
def followed(
    module: nn.Module, blocks: Mapping[str, nn.Module], styles: Mapping[str, ParallelStyle]
) -> Iterator[None]:
    """A context in which what is computed from parts is followed, from layers that are cut by
    columns on.

    Args:
        module: the user's.
        blocks: by name, see `blocks_of`.
        styles: of layers, by names in the module.

    Raises:
        ModuleError: a layer that is cut by rows isn't given the part that it needs, or a block
            returns, or a buffer gets, what is no part of the whole.
    """
    handles: list[RemovableHandle] = []
    following = _FollowedParts(module)
    for name, one in blocks.items():
        inside = {
            layer: style
            for layer, style in styles.items()
            if _is_within(layer, name) and type(style) in (ColwiseParallel, RowwiseParallel)
        }
        if any(map(_is_elsewhere, one.parameters())) or any(map(_cuts_sequence, inside.values())):
            continue
        differs = partial(_refuse, name, one)
        for layer, style in inside.items():
            handles += _around(module.get_submodule(layer), style, following, differs)
        handles.append(one.register_forward_hook(partial(_check_result, name)))
    try:
        with uncompiled(), following:
            yield
    finally:
        for handle in handles:
            handle.remove()
    for name, buffer in module.named_buffers():
        mark = mark_of(buffer, _AXIS)
        if mark is not None:
            put([buffer], _AXIS, None)
            text = (
                f"The buffer {name!r} is changed by what each rank of a tensor group has a part "
                f"of, and would be another one on each. {_said(mark)}{_CURE}"
            )
            refuse(ModuleError(text), axis=_AXIS, place=place_of(mark))


def _is_elsewhere(parameter: Tensor) -> bool:
    return is_absent(parameter) or "expert" in cut_axes(parameter)


def _cuts_sequence(style: Any) -> bool:
    """True for a layer that is given, or returns, a part of something else than its columns."""
    is_by_columns = isinstance(style, ColwiseParallel)
    return not _is_whole(style.input_layouts if is_by_columns else style.output_layouts)


def _around(
    layer: nn.Module, style: Any, following: Following, differs: Callable[[Mark], None]
) -> Iterator[RemovableHandle]:
    """The hooks of one layer: torch's own see to how its result lies."""

    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        following.depth += 1
        if is_in_backward():
            return  # it is computed again
        given = next(one for one in (*args, *kwargs.values()) if isinstance(one, Tensor))
        mark = mark_of(given, _AXIS)
        if mark != _laid_out(given, style.input_layouts) and not isinstance(given, DTensor):
            differs(mark)

    def end(module: nn.Module, args: Any, output: Any) -> None:
        following.depth -= 1
        if isinstance(output, Tensor) and not isinstance(output, DTensor | PartedTensor):
            put([output], _AXIS, _laid_out(output, style.output_layouts))

    yield layer.register_forward_pre_hook(begin, prepend=True, with_kwargs=True)
    yield layer.register_forward_hook(end, always_call=True)


def _laid_out(tensor: Tensor, layouts: Any) -> Mark:
    """How a tensor lies that a layer is given, or gives."""
    (layout,) = layouts
    return PartAlong(layout.dim % tensor.ndim) if isinstance(layout, Shard) else None


def _check_result(name: str, module: nn.Module, args: Any, result: Any) -> None:
    for one in tree_leaves(result):
        mark = mark_of(one, _AXIS)
        if isinstance(mark, Mixed):
            _refuse(name, module, mark)
            put([one], _AXIS, None)


def _refuse(name: str, module: nn.Module, mark: Mark) -> None:
    text = (
        f"{type(module).__name__} {name!r} computes other values with the layers that the tensor "
        f"plan cuts than whole. {_said(mark)}{_CURE}A norm, a softmax, a choice of the largest or "
        "a sum over them isn't: cut the layer before it by 'colwise_gather_output' and give the "
        "one after it 'rowwise_split_input', or leave both out of the plan."
    )
    if isinstance(mark, Mixed) and mark.draws:
        text = (
            f"{type(module).__name__} {name!r} drops some of what all ranks of a tensor group have "
            "whole, between its layers that are cut by columns and by rows, where each rank draws "
            "a mask of its own. Do that before the first of them or behind the last, or leave both "
            "out of the plan."
        )
    refuse(ModuleError(text), axis=_AXIS, place=place_of(mark))


def _said(mark: Mark) -> str:
    if isinstance(mark, Mixed):
        return f"At the first difference each rank computes {mark} of its own part. "
    if mark is None:
        return "A layer that is cut by rows is given what all ranks have whole. "
    return f"A layer is given what is cut along its dim {mark.dim}. "
