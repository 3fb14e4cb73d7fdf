"""How the result of an operation lies, by how its arguments do.

Operations are torch's, below autograd: a few kinds of rules are enough for them. One without a rule
mixes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core_parallel.following.marks import MICROBATCH, Mark, Mixed, PartAlong, mark_of
from core_parallel.following.terms import SUMS, keeps_terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from core_parallel.following.operations import Operation

    _Rule = Callable[["_Call"], PartAlong | None]


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
    cut: list[tuple[Tensor, PartAlong]]
    whole: list[Tensor]
    result: Tensor

    @property
    def first(self) -> tuple[Tensor, PartAlong]:
        """The argument that lies in parts, of an operation of one."""
        return self.cut[0]

    def mark_of(self, tensor: Tensor) -> PartAlong | None:
        """How an argument lies."""
        return next((mark for one, mark in self.cut if one is tensor), None)

    def dims(self, name: str) -> set[int]:
        """The dims that an argument names, of the tensor that lies in parts; all by default."""
        dims, ndim = self.given.get(name), self.first[0].ndim
        if dims is None or dims == []:
            return set(range(ndim))
        if isinstance(dims, int):
            return {dims % ndim}
        return {one % ndim for one in dims}


def result_of(axis: str, call: Operation) -> Mark:
    """How the results of an operation lie.

    Args:
        axis: of the mesh, along which ranks have parts.
        call: of the operation.
    """
    func, tensors, results = call.func, call.given, call.results
    if call.is_higher:
        if func.__name__ == "flex_attention":
            return of_attention(axis, tensors[:3], results[0])
        return _result_of(axis, func.__name__, None, {}, tensors, results[0])
    name = func.overloadpacket.__name__
    if not results or name in _OF_SHAPES or all(mark_of(one, axis) is None for one in tensors):
        return None
    rule = _RULES.get(call.name)
    if rule is None and torch.Tag.pointwise in func.tags:
        rule = _by_element
    return _result_of(axis, name, rule, call.arguments, tensors, results[0])


def of_attention(axis: str, given: Sequence[Tensor], result: Tensor) -> Mark:
    """How the result of attention lies that was computed otherwise than by a torch operation.

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
    cut: list[tuple[Tensor, PartAlong]] = []
    whole: list[Tensor] = []
    marks = [mark_of(one, axis) for one in tensors]
    mixed = [one for one in marks if isinstance(one, Mixed)]
    if mixed:
        return mixed[0] if keeps_terms(name, marks) else replace(mixed[0], is_term=False)
    for one, mark in zip(tensors, marks, strict=True):
        if mark is None and axis != MICROBATCH:
            whole.append(one)
        elif mark is not None:
            cut.append((one, mark))
    if not cut:
        return None
    found = None if rule is None else rule(_Call(axis, given, cut, whole, result))
    return Mixed(name, is_term=name in SUMS) if found is None else found


def _place(tensor: Tensor, mark: PartAlong) -> tuple[int, int]:
    """Where a tensor is cut, counted from its last dim as shapes are broadcast."""
    return tensor.ndim - mark.dim, mark.outer


def _is_alike(tensor: Tensor, from_end: int) -> bool:
    """True if a tensor that all ranks have is the same for all parts of that dim."""
    if tensor.ndim < from_end:
        return True
    return tensor.shape[-from_end] == 1 or tensor.stride(-from_end) == 0


def _broadcast(
    cut: Iterable[tuple[Tensor, PartAlong]], whole: Iterable[Tensor], ndim: int
) -> PartAlong | None:
    """How a result of so many dims lies, of tensors that are broadcast against each other."""
    places = {_place(one, mark) for one, mark in cut}
    if len(places) != 1:
        return None
    ((from_end, outer),) = places
    if not all(_is_alike(one, from_end) for one in whole):
        return None
    return PartAlong(ndim - from_end, outer)


def _by_element(call: _Call) -> PartAlong | None:
    return _broadcast(call.cut, call.whole, call.result.ndim)


def _copied(call: _Call) -> PartAlong | None:
    """How a copy lies: what was there before doesn't count."""
    source = [one for one in call.cut if one[0] is call.given["src"]]
    return _broadcast(source or call.cut, [], call.result.ndim)


def _same(call: _Call) -> PartAlong | None:
    return call.first[1]


def _but_last(call: _Call) -> PartAlong | None:
    """How complex numbers lie, of which the last dim has both parts."""
    tensor, mark = call.first
    return mark if mark.dim < tensor.ndim - 1 else None


def _viewed(call: _Call) -> PartAlong | None:
    """Values keep their order: what lies before the cut dim says where it is.

    Of several dims it is the first, as a rank may have one head; of a sequence it has more.
    """
    tensor, mark = call.first
    extent = tensor.shape[mark.dim] // mark.outer
    if extent == 1 and call.axis == "context":
        return _of_one_position(tensor, mark, call.result)
    before, product = math.prod(tensor.shape[: mark.dim]) * mark.outer, 1
    is_one = extent == 1 or call.axis != "context"
    for dim, size in enumerate(call.result.shape):
        if product * size > before or (product == before and (size > 1 or is_one)):
            outer = before // product
            if before % product or (size // outer < extent and not _divides_well(call, dim)):
                return None
            return PartAlong(dim, outer)
        product *= size
    return None


def _of_one_position(tensor: Tensor, mark: PartAlong, result: Tensor) -> PartAlong | None:
    """Where the one position of a part is in a view: a dim of its own, or behind samples in one."""
    before, product = math.prod(tensor.shape[: mark.dim]) * mark.outer, 1
    for dim, size in enumerate(result.shape):
        if product == before and size == 1:
            return PartAlong(dim)
        product *= size
        if product == before and (dim + 1 == result.ndim or result.shape[dim + 1] != 1):
            return PartAlong(dim, size)
    return None


def _divides_well(call: _Call, dim: int) -> bool:
    """True if a dim that becomes several has more of the first on one device, such as more heads.

    A sequence may have more of any, such as more windows or longer ones: which isn't known.
    """
    sizes = list(call.given["size"])
    return call.axis != "context" and (-1 not in sizes[dim + 1 :] or -1 in sizes[:dim])


def _unsqueezed(call: _Call) -> PartAlong | None:
    mark = call.first[1]
    return PartAlong(mark.dim + (call.given["dim"] % call.result.ndim <= mark.dim), mark.outer)


def _squeezed(call: _Call) -> PartAlong | None:
    tensor, mark = call.first
    gone = {one for one in call.dims("dim") if tensor.shape[one] == 1}
    if mark.dim in gone:
        return None
    return PartAlong(mark.dim - sum(one < mark.dim for one in gone), mark.outer)


def _permuted(call: _Call) -> PartAlong | None:
    tensor, mark = call.first
    order = [one % tensor.ndim for one in call.given["dims"]]
    return PartAlong(order.index(mark.dim), mark.outer)


def _transposed(call: _Call) -> PartAlong | None:
    tensor, mark = call.first
    pair = call.given.get("dim0", 0) % tensor.ndim, call.given.get("dim1", 1) % tensor.ndim
    return PartAlong({pair[0]: pair[1], pair[1]: pair[0]}.get(mark.dim, mark.dim), mark.outer)


def _expanded(call: _Call) -> PartAlong | None:
    tensor, mark = call.first
    dim = call.result.ndim - tensor.ndim + mark.dim
    if call.result.shape[dim] == tensor.shape[mark.dim]:
        return PartAlong(dim, mark.outer)
    return None


def _along_others(call: _Call) -> PartAlong | None:
    """How a result lies of what goes along a dim, and leaves all dims in their places."""
    tensor, mark = call.first
    if "start" in call.given and call.result.shape == tensor.shape:
        return mark  # a slice of all
    name = "dims" if "dims" in call.given else "dim"
    if mark.dim in call.dims(name):
        return None
    return mark


def _selected(call: _Call) -> PartAlong | None:
    """How one place of a dim lies, which is then gone."""
    tensor, mark = call.first
    dim = call.given["dim"] % tensor.ndim
    if dim == mark.dim:
        return None
    return PartAlong(mark.dim - (dim < mark.dim), mark.outer)


def _reduced(call: _Call) -> PartAlong | None:
    if "other" in call.given:  # the larger of two
        return _by_element(call)
    mark, dims = call.first[1], call.dims("dim")
    if mark.dim in dims:
        return None
    is_kept = call.result.ndim == call.first[0].ndim
    if is_kept:
        return mark
    return PartAlong(mark.dim - sum(one < mark.dim for one in dims), mark.outer)


def _joined(call: _Call) -> PartAlong | None:
    found = _by_element(call)
    if found is None or found.dim in call.dims("dim"):
        return None
    return found


def _stacked(call: _Call) -> PartAlong | None:
    if _broadcast(call.cut, call.whole, call.result.ndim) is None:
        return None
    mark, added = call.first[1], call.given["dim"] % call.result.ndim
    return PartAlong(mark.dim + (added <= mark.dim), mark.outer)


def _multiplied(call: _Call) -> PartAlong | None:
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
    return PartAlong(call.result.ndim - from_end, outer)


def _embedded(call: _Call) -> PartAlong | None:
    if call.mark_of(call.given["weight"]):
        return None
    return call.first[1]


def _by_sample(call: _Call) -> PartAlong | None:
    """How a result lies of what computes each sample by itself, which are the first dim."""
    if call.mark_of(call.first[0]) != PartAlong(0) or call.given.get("training"):
        return None
    return PartAlong(0)


def _padded(call: _Call) -> PartAlong | None:
    tensor, mark = call.first
    if mark.dim >= tensor.ndim - len(call.given["pad"]) // 2:
        return None
    return mark


def _normed(call: _Call) -> PartAlong | None:
    tensor, mark = call.first
    if mark.dim < tensor.ndim - len(call.given["normalized_shape"]):
        return mark
    return None


def _attended(call: _Call) -> PartAlong | None:
    found = _by_element(call)
    if found is None or call.result.ndim - found.dim < 3:
        return None  # positions, or the numbers of each
    return found


def _gathered(call: _Call) -> PartAlong | None:
    """Values at places along a dim, which an index gives for each place of the result."""
    given, index = call.given["self"], call.given["index"]
    dim, mark = call.given["dim"] % given.ndim, call.mark_of(given)
    if mark is not None:
        if dim == call.first[1].dim:
            return None
        return _by_element(call)
    mark = call.first[1]
    is_of_all = mark.dim == dim or _is_alike(given, given.ndim - mark.dim)
    if is_of_all and len(call.cut) == 1 and call.cut[0][0] is index:
        return mark
    return None


def _picked(call: _Call) -> PartAlong | None:
    """Slices at some places of a dim."""
    given, mark = call.given["self"], call.first[1]
    dim = call.given["dim"] % given.ndim
    if call.mark_of(given) is None:
        return PartAlong(dim, mark.outer)
    if dim == mark.dim or len(call.cut) > 1:
        return None
    return mark


def _indexed(call: _Call) -> PartAlong | None:
    """One dim of a tensor is indexed by a tensor."""
    given, indices = call.given["self"], call.given["indices"]
    dims = [dim for dim, one in enumerate(indices) if one is not None]
    index = indices[dims[0]]
    if len(dims) != 1 or len(call.cut) != 1 or (index.dtype == torch.bool and index.ndim != 1):
        return None
    mark = call.first[1]
    if call.mark_of(given) is None:
        if index.dtype == torch.bool:
            return None
        return PartAlong(dims[0] + mark.dim, mark.outer)
    if dims[0] == mark.dim:
        return None
    added = index.ndim - 1  # 0 of a mask, whose places are one dim
    return PartAlong(mark.dim + added * (dims[0] < mark.dim), mark.outer)


_OF_SHAPES = ("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided")


def _named(rule: _Rule, names: str) -> dict[str, _Rule]:
    return dict.fromkeys(names.split(), rule)


_RULES: dict[str, _Rule] = {
    **_named(
        _same,
        "alias detach clone contiguous _to_copy lift_fresh zeros_like ones_like empty_like "
        "full_like rand_like randn_like native_dropout bernoulli dropout nan_to_num positive fill "
        "zero log_sigmoid_forward view_as_real",
    ),
    **_named(_by_element, "masked_fill where hardswish rsub _prelu_kernel"),
    **_named(_copied, "copy"),
    **_named(_but_last, "view_as_complex"),
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
    **_named(_padded, "constant_pad_nd"),
    **_named(
        _by_sample,
        "convolution max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d mkldnn_max_pool2d "
        "native_group_norm native_batch_norm cudnn_batch_norm upsample_nearest2d "
        "upsample_bilinear2d",
    ),
}
