"""How the result of an operation lies, by how its arguments do.

Operations are torch's, below autograd: a few kinds of rules are enough for them. One without a rule
mixes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from core_parallel.following.marks import Cut, Mark, Mixed, mark_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    _Rule = Callable[["_Call"], Cut | None]


@dataclass(frozen=True)
class _Call:
    """An operation that was called.

    Attributes:
        axis: of the mesh, along which ranks have parts.
        given: its arguments by name.
        cut: those that lie in parts, with how.
        whole: the other tensors.
        result: the first tensor of the result.
    """

    axis: str
    given: dict[str, Any]
    cut: list[tuple[Tensor, Cut]]
    whole: list[Tensor]
    result: Tensor

    @property
    def first(self) -> tuple[Tensor, Cut]:
        """The argument that lies in parts, of an operation of one."""
        return self.cut[0]

    def mark_of(self, tensor: Tensor) -> Cut | None:
        """How an argument lies."""
        return next((mark for one, mark in self.cut if one is tensor), None)

    def dims(self, name: str) -> set[int]:
        """The dims that an argument names, of the tensor that lies in parts; all by default."""
        dims, ndim = self.given.get(name), self.first[0].ndim
        if dims is None or dims == []:
            return set(range(ndim))
        return {one % ndim for one in ([dims] if isinstance(dims, int) else dims)}


def result_of(axis: str, func: Any, args: Any, kwargs: Any, results: list[Tensor]) -> Mark:
    """How the results of an operation lie.

    Args:
        axis: of the mesh, along which ranks have parts.
        func: the operation, one of `torch.ops`.
        args: its arguments.
        kwargs: its named arguments.
        results: the tensors that it returned.
    """
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    name = func.overloadpacket.__name__
    if not results or name in _OF_SHAPES or all(mark_of(one, axis) is None for one in tensors):
        return None
    rule = _RULES.get(name.removesuffix("_"))
    if rule is None and torch.Tag.pointwise in func.tags:
        rule = _by_element
    known = func._schema.arguments
    given = {one.name: one.default_value for one in known if one.has_default_value()}
    given |= {**dict(zip([one.name for one in known], args, strict=False)), **kwargs}
    return _result_of(axis, name, rule, given, tensors, results[0])


def of_attention(axis: str, given: Sequence[Tensor], result: Tensor) -> Mark:
    """How the result of attention lies that was computed otherwise than by an operation of torch's.

    Args:
        axis: of the mesh, along which ranks have parts.
        given: query, key, value, and perhaps a mask.
        result: of that.
    """
    return _result_of(axis, "attention", _attended, {}, given, result)


def _result_of(
    axis: str,
    name: str,
    rule: _Rule | None,
    given: dict[str, Any],
    tensors: Sequence[Tensor],
    result: Tensor,
) -> Mark:
    cut: list[tuple[Tensor, Cut]] = []
    whole: list[Tensor] = []
    for one in tensors:
        mark = mark_of(one, axis)
        if isinstance(mark, Mixed):
            return mark
        if mark is None:
            whole.append(one)
        else:
            cut.append((one, mark))
    if not cut:
        return None
    found = None if rule is None else rule(_Call(axis, given, cut, whole, result))
    return Mixed(name) if found is None else found


def _place(tensor: Tensor, mark: Cut) -> tuple[int, int]:
    """Where a tensor is cut, counted from its last dim as shapes are broadcast."""
    return tensor.ndim - mark.dim, mark.outer


def _is_alike(tensor: Tensor, from_end: int) -> bool:
    """True if a tensor that all ranks have is the same for all parts of that dim."""
    if tensor.ndim < from_end:
        return True
    return tensor.shape[-from_end] == 1 or tensor.stride(-from_end) == 0


def _common(cut: Iterable[tuple[Tensor, Cut]], whole: Iterable[Tensor]) -> tuple[int, int] | None:
    """The one place where tensors are cut that are broadcast against each other."""
    places = {_place(one, mark) for one, mark in cut}
    if len(places) != 1:
        return None
    (place,) = places
    return place if all(_is_alike(one, place[0]) for one in whole) else None


def _by_element(call: _Call) -> Cut | None:
    place = _common(call.cut, call.whole)
    return None if place is None else Cut(call.result.ndim - place[0], place[1])


def _copied(call: _Call) -> Cut | None:
    """What was there before doesn't count."""
    source = call.given["src"]
    place = _common([one for one in call.cut if one[0] is source] or call.cut, [])
    return None if place is None else Cut(call.result.ndim - place[0], place[1])


def _same(call: _Call) -> Cut | None:
    return call.first[1]


def _viewed(call: _Call) -> Cut | None:
    """Values keep their order: what lies before the cut dim says where it is.

    Of several dims it is the first, as a rank may have one head; of a sequence it has more.
    """
    tensor, mark = call.first
    is_longer = call.axis == "context" and tensor.shape[mark.dim] > mark.outer
    before, product = math.prod(tensor.shape[: mark.dim]) * mark.outer, 1
    for dim, size in enumerate(call.result.shape):
        if product == before and not (size == 1 and is_longer):
            return Cut(dim)
        if product * size > before:
            return Cut(dim, before // product) if before % product == 0 else None
        product *= size
    return None


def _unsqueezed(call: _Call) -> Cut | None:
    mark = call.first[1]
    return Cut(mark.dim + (call.given["dim"] % call.result.ndim <= mark.dim), mark.outer)


def _squeezed(call: _Call) -> Cut | None:
    tensor, mark = call.first
    gone = {one for one in call.dims("dim") if tensor.shape[one] == 1}
    if mark.dim in gone:
        return None
    return Cut(mark.dim - sum(one < mark.dim for one in gone), mark.outer)


def _permuted(call: _Call) -> Cut | None:
    tensor, mark = call.first
    order = [one % tensor.ndim for one in call.given["dims"]]
    return Cut(order.index(mark.dim), mark.outer)


def _transposed(call: _Call) -> Cut | None:
    tensor, mark = call.first
    pair = call.given.get("dim0", 0) % tensor.ndim, call.given.get("dim1", 1) % tensor.ndim
    return Cut({pair[0]: pair[1], pair[1]: pair[0]}.get(mark.dim, mark.dim), mark.outer)


def _expanded(call: _Call) -> Cut | None:
    tensor, mark = call.first
    dim = call.result.ndim - tensor.ndim + mark.dim
    return Cut(dim, mark.outer) if call.result.shape[dim] == tensor.shape[mark.dim] else None


def _along_others(call: _Call) -> Cut | None:
    """What goes along a dim, and leaves all dims in their places."""
    tensor, mark = call.first
    if "start" in call.given and call.result.shape == tensor.shape:
        return mark  # a slice of all
    return None if mark.dim in call.dims("dims" if "dims" in call.given else "dim") else mark


def _selected(call: _Call) -> Cut | None:
    """What takes one place of a dim, which is then gone."""
    tensor, mark = call.first
    dim = call.given["dim"] % tensor.ndim
    return None if dim == mark.dim else Cut(mark.dim - (dim < mark.dim), mark.outer)


def _reduced(call: _Call) -> Cut | None:
    if "other" in call.given:  # the larger of two
        return _by_element(call)
    mark, dims = call.first[1], call.dims("dim")
    if mark.dim in dims:
        return None
    is_kept = call.result.ndim == call.first[0].ndim
    return mark if is_kept else Cut(mark.dim - sum(one < mark.dim for one in dims), mark.outer)


def _joined(call: _Call) -> Cut | None:
    found = _by_element(call)
    return None if found is None or found.dim in call.dims("dim") else found


def _stacked(call: _Call) -> Cut | None:
    place = _common(call.cut, call.whole)
    if place is None:
        return None
    dim = call.first[1].dim
    added = call.given["dim"] % call.result.ndim
    return Cut(dim + (added <= dim), place[1])


def _multiplied(call: _Call) -> Cut | None:
    """A product of matrices, or of batches of them, plus perhaps a bias."""
    left: Tensor = call.given.get("mat1", call.given.get("batch1", call.given["self"]))
    right: Tensor = call.given.get("mat2", call.given.get("batch2", left))
    found: list[tuple[int, int]] = []
    for one, kept in ((left, 2), (right, 1)):
        if (mark := call.mark_of(one)) is not None:
            place = _place(one, mark)
            if place[0] not in (kept, 3):
                return None  # summed over
            found.append(place)
    if len(set(found)) != 1:
        return None
    from_end, outer = found[0]
    if from_end == 3 and not all(call.mark_of(one) or one.stride(0) == 0 for one in (left, right)):
        return None
    bias = call.given["self"]
    if bias is not left:
        mark = call.mark_of(bias)
        if mark is None and not _is_alike(bias, from_end):
            return None
        if mark is not None and _place(bias, mark) != (from_end, outer):
            return None
    return Cut(call.result.ndim - from_end, outer)


def _embedded(call: _Call) -> Cut | None:
    return None if call.mark_of(call.given["weight"]) else call.first[1]


def _normed(call: _Call) -> Cut | None:
    tensor, mark = call.first
    return mark if mark.dim < tensor.ndim - len(call.given["normalized_shape"]) else None


def _attended(call: _Call) -> Cut | None:
    place = _common(call.cut, call.whole)
    if place is None or place[0] < 3:
        return None
    return Cut(call.result.ndim - place[0], place[1])


def _gathered(call: _Call) -> Cut | None:
    """Values at places along a dim, which an index gives for each place of the result."""
    given, index = call.given["self"], call.given["index"]
    dim, mark = call.given["dim"] % given.ndim, call.mark_of(given)
    if mark is not None:
        return None if dim == call.first[1].dim else _by_element(call)
    mark = call.first[1]
    is_of_all = mark.dim == dim or _is_alike(given, given.ndim - mark.dim)
    return mark if is_of_all and len(call.cut) == 1 and call.cut[0][0] is index else None


def _picked(call: _Call) -> Cut | None:
    """Slices at some places of a dim."""
    given, mark = call.given["self"], call.first[1]
    dim = call.given["dim"] % given.ndim
    if call.mark_of(given) is None:
        return Cut(dim, mark.outer)
    return None if dim == mark.dim or len(call.cut) > 1 else mark


def _indexed(call: _Call) -> Cut | None:
    """One dim of a tensor is indexed by a tensor."""
    given, indices = call.given["self"], call.given["indices"]
    dims = [dim for dim, one in enumerate(indices) if one is not None]
    index = indices[dims[0]]
    if len(dims) != 1 or len(call.cut) != 1 or (index.dtype == torch.bool and index.ndim != 1):
        return None
    mark = call.first[1]
    if call.mark_of(given) is None:
        return None if index.dtype == torch.bool else Cut(dims[0] + mark.dim, mark.outer)
    added = 0 if index.dtype == torch.bool else index.ndim - 1
    return None if dims[0] == mark.dim else Cut(mark.dim + added * (dims[0] < mark.dim), mark.outer)


_OF_SHAPES = ("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided")


def _named(rule: _Rule, names: str) -> dict[str, _Rule]:
    return dict.fromkeys(names.split(), rule)


_RULES: dict[str, _Rule] = {
    **_named(
        _same,
        "alias detach clone contiguous _to_copy lift_fresh zeros_like ones_like empty_like "
        "full_like rand_like randn_like native_dropout bernoulli dropout nan_to_num positive fill "
        "zero log_sigmoid_forward",
    ),
    **_named(_by_element, "masked_fill where hardswish rsub _prelu_kernel"),
    **_named(_copied, "copy"),
    **_named(_viewed, "view _unsafe_view reshape _reshape_alias"),
    **_named(_unsqueezed, "unsqueeze"),
    **_named(_squeezed, "squeeze"),
    **_named(_permuted, "permute"),
    **_named(_transposed, "transpose t"),
    **_named(_expanded, "expand"),
    **_named(
        _along_others,
        "slice split split_with_sizes chunk _softmax _safe_softmax _log_softmax cumsum cumprod "
        "logcumsumexp sort topk flip roll glu",
    ),
    **_named(_selected, "select unbind"),
    **_named(
        _reduced,
        "sum mean amax amin any all var std var_mean logsumexp linalg_vector_norm prod argmax "
        "argmin max min",
    ),
    **_named(_joined, "cat"),
    **_named(_stacked, "stack"),
    **_named(_multiplied, "mm bmm addmm baddbmm"),
    **_named(_embedded, "embedding"),
    **_named(_normed, "native_layer_norm _fused_rms_norm"),
    **_named(
        _attended,
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_fused_attention_overrideable",
    ),
    **_named(_gathered, "gather scatter"),
    **_named(_picked, "index_select"),
    **_named(_indexed, "index"),
}
