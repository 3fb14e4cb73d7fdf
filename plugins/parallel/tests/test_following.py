"""What is said of a result that was computed from parts is true of it: parts make up the whole, or
it is none.
"""

import pytest
import torch
from torch.nn import functional

from core import ModuleError
from core_parallel.following.marks import Mixed, PartAlong, mark_of, put
from core_parallel.following.mode import Following

_SHAPE = (2, 4, 6, 8)
_W = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
_PER_HEAD = torch.randn(4, 1, 1, generator=torch.Generator().manual_seed(2))


def _added_to_a_list(x):
    total = torch.zeros(())
    torch._foreach_add_([total], [x.sum()])
    return total


def _written(x):
    made = x.new_empty(*x.shape[:-1], 2 * x.shape[-1])
    made[..., : x.shape[-1]].copy_(x)
    made[..., x.shape[-1] :] = 2
    return made


_RIGHT = {
    "written into slices": (1, _written),
    "by element": (1, lambda x: functional.gelu(x * 2 + x.tanh())),
    "with what is alike": (1, lambda x: x + torch.arange(8.0)),
    "with another part": (1, lambda x: x * x.sum(-1, keepdim=True)),
    "where": (1, lambda x: torch.where(x > 0, x, x.new_zeros(()))),
    "in place": (1, lambda x: x.clone().mul_(3).clamp_(min=0)),
    "heads to one dim": (1, lambda x: x.transpose(1, 2).flatten(2)),
    "one dim to heads": (3, lambda x: x.unflatten(-1, (-1, 2)).transpose(1, 3)),
    "samples and heads as one": (1, lambda x: x.reshape(-1, 6, 8) * 2),
    "and apart again": (1, lambda x: x.flatten(0, 1).softmax(-1).view(2, -1, 6, 8)),
    "of no more than one": (0, lambda x: x[:, :1].squeeze(1).unsqueeze(0).unsqueeze(-1)),
    "by another size": (1, lambda x: x / x.shape[-1] * x.size(0)),
    "in a class each": (1, lambda x: functional.one_hot((x[..., 0] > 0).long(), 2)),
    "by its data": (1, lambda x: x.data * 2),
    "heads that are counted": (3, lambda x: x.view(2, 4, 6, -1, 4)),
    "permuted": (2, lambda x: x.permute(2, 0, 3, 1)),
    "of a matrix": (0, lambda x: x[:, 0, 0].t()),
    "expanded": (1, lambda x: x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(2, -1, 6, 8)),
    "split": (1, lambda x: torch.cat([*x.split(4, -1)][::-1], -1)),
    "chunks and stacks": (2, lambda x: torch.stack(x.chunk(2, 1), 1)),
    "unbound": (1, lambda x: torch.stack(x.unbind(-1), -1)),
    "selected": (1, lambda x: x[..., 0]),
    "indexed": (1, lambda x: x[:, :, [3, 0]]),
    "sums": (1, lambda x: x.sum((0, -1))),
    "means that keep": (2, lambda x: x.mean(1, keepdim=True)),
    "the largest": (1, lambda x: x.max(-1).values),
    "of two": (1, lambda x: torch.maximum(x, -x)),
    "norms": (1, lambda x: functional.layer_norm(x, (8,))),
    "softmax": (1, lambda x: x.softmax(-1)),
    "sorted": (1, lambda x: x.sort(-1).values.flip(-1)),
    "some of the largest": (1, lambda x: x.topk(2, -1).values),
    "rows of a product": (2, lambda x: x @ _W),
    "columns of a product": (3, lambda x: torch.ones(5, 6) @ x),
    "batches of a product": (1, lambda x: x @ x.transpose(-1, -2)),
    "with a bias": (0, lambda x: torch.addmm(torch.ones(5), x[:, 0, 0], _W)),
    "attention": (1, lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True)),
    "places": (0, lambda x: functional.embedding(x[:, 0, 0].argmax(-1), _W)),
    "picked": (1, lambda x: x.index_select(-1, torch.tensor([1, 0]))),
    "scattered": (1, lambda x: torch.zeros_like(x).scatter(-1, x.argsort(-1)[..., :2], 1.0)),
    "of a table": (0, lambda x: _W[x[:, 0, 0].argmax(-1)]),
    "of a table, picked": (0, lambda x: _W.index_select(0, x[:, 0, 0].argmax(-1))),
    "of a table, gathered": (
        1,
        lambda x: torch.arange(8).expand(2, -1).gather(1, x[:, :, 0].argmax(-1)),
    ),
    "gathered": (1, lambda x: x.gather(-1, x.argsort(-1))),
    "without dropping": (1, lambda x: functional.dropout(x, 0.0)),
    "of another dtype": (1, lambda x: x.double().to(torch.float32)),
}
_MIXED = {
    "heads that are counted at the wrong place": (3, lambda x: x.view(2, 4, 6, 2, -1), "view"),
    "divided by its size": (3, lambda x: x / x.size(dim=-1), "with a size of its part"),
    "by its shape": (1, lambda x: x * x.shape[1] ** -0.5, "with a size of its part"),
    "written by a list": (1, lambda x: _added_to_a_list(x), "sum"),
    "sums": (1, lambda x: x.sum(1), "sum"),
    "a sum of all": (1, lambda x: x.sum(), "sum"),
    "softmax": (3, lambda x: x.softmax(-1), "_softmax"),
    "norms": (3, lambda x: functional.layer_norm(x, x.shape[-1:]), "native_layer_norm"),
    "the largest": (3, lambda x: x.topk(2, -1).values, "topk"),
    "shifted": (2, lambda x: x.roll(1, 2), "roll"),
    "one place": (2, lambda x: x[:, :, -1], "select"),
    "some places": (2, lambda x: x[:, :, 1:], "slice"),
    "halves": (3, lambda x: x.chunk(2, -1)[0], "split"),
    "with a number a head": (1, lambda x: x * _PER_HEAD[: x.shape[1]], "mul"),
    "with another dim": (0, lambda x: x[:, :1, 0, 0] + x[:, :1, 0, 0].t(), "add"),
    "summed over": (3, lambda x: x @ _W[: x.shape[-1]], "mm"),
    "between positions": (
        2,
        lambda x: functional.scaled_dot_product_attention(x, x, x),
        "attention",
    ),
    "a product of parts": (2, lambda x: x @ x.transpose(-1, -2), "bmm"),
    "joined": (1, lambda x: torch.cat([x, x], 1), "cat"),
    "without a rule": (1, lambda x: torch.linalg.svdvals(x), "_linalg_svd"),
    "mixed before": (1, lambda x: (x.sum(1) * 2)[0], "sum"),
}


def _computed(dim, compute):
    """What is computed of the whole, and of two parts, with the mark of that."""
    whole = torch.randn(_SHAPE, generator=torch.Generator().manual_seed(0))
    found = []
    for part in whole.chunk(2, dim):
        part = part.clone()
        put([part], "tensor", PartAlong(dim))
        with Following("tensor", "Leave it out."):
            found.append(compute(part))
    return compute(whole), found, mark_of(found[0], "tensor")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", _RIGHT)
def test_parts_that_are_said_to_make_up_a_whole_do(name, mode):
    dim, compute = _RIGHT[name]
    with mode():
        whole, parts, mark = _computed(dim, compute)
    assert isinstance(mark, PartAlong), mark
    apart = [one.unflatten(mark.dim, (mark.outer, -1)) for one in parts]
    assert torch.allclose(torch.cat(apart, mark.dim + 1).flatten(mark.dim, mark.dim + 1), whole)


@pytest.mark.parametrize("name", _MIXED)
def test_what_is_no_part_of_the_whole_is_said_to_be_none_with_the_operation(name):
    dim, compute, operation = _MIXED[name]
    mark = _computed(dim, compute)[2]
    assert isinstance(mark, Mixed), mark
    assert operation in mark.operation


@pytest.mark.parametrize("read", [float, bool, lambda x: x.tolist(), lambda x: x.numpy()])
def test_no_number_is_made_of_a_part(read):
    with pytest.raises(ModuleError, match=r"another one on each rank\. Leave it out\."):
        _computed(1, lambda x: read(x.amax()))


def test_windows_of_a_part_of_a_sequence_are_no_part_of_those_of_the_whole():
    part = torch.randn(2, 4, 6)
    put([part], "context", PartAlong(1))
    with Following("context", ""):
        windows = part.view(2, 2, 2, 6)
        joined = part.flatten(0, 1).view(2, 1, 4, 6)
        one = torch.randn(2, 1, 6)
        put([one], "context", PartAlong(1))
        product = one @ _W[:6]
        heads = product.view(2, 1, 1, 5).transpose(1, 2)
    assert mark_of(windows, "context") == Mixed("view")
    assert mark_of(joined, "context") == PartAlong(2)
    assert mark_of(product, "context") == PartAlong(1)
    assert mark_of(heads, "context") == PartAlong(2)


def test_what_was_computed_of_wholes_has_no_mark():
    with Following("tensor", ""):
        assert mark_of(torch.ones(2) + torch.arange(2), "tensor") is None
