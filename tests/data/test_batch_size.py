from collections import UserDict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from core.data import is_ambiguous, size_of

FIVE, SCALAR = torch.zeros(5, 3), torch.tensor(1.0)
Pair = namedtuple("Pair", "x y")


@dataclass
class Labeled:
    name: str
    image: torch.Tensor


class Unsure:
    """As a graph library's data that wasn't batched."""

    @property
    def num_graphs(self):
        raise ValueError("can't infer it")


@pytest.mark.parametrize(
    "batch",
    [
        FIVE,
        [FIVE, FIVE],
        {"scale": SCALAR, "text": ["a"], "x": FIVE},
        UserDict(ids=FIVE),
        MappingProxyType({"inner": UserDict(x=(None, FIVE))}),
        Pair("text", FIVE),
        Labeled("text", FIVE),
        [{"inner": Labeled("text", FIVE)}],
        np.zeros((5, 2)),
        SimpleNamespace(num_graphs=5, x=torch.zeros(40, 3)),
        SimpleNamespace(batch_size=5),
        SimpleNamespace(batch_size=torch.Size([5, 2])),
        pack_sequence([torch.zeros(length) for length in (4, 3, 3, 2, 1)]),
        torch.nested.nested_tensor(
            [torch.zeros(2 + length) for length in range(5)], layout=torch.jagged
        ),
        torch.eye(5).to_sparse(),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_five_samples(batch):
    assert size_of(batch) == 5
    assert not is_ambiguous(batch)


def test_an_attrs_class():
    attr = pytest.importorskip("attr")
    assert size_of(attr.make_class("Sample", ["name", "image"])("text", FIVE)) == 5


@pytest.mark.parametrize("batch", [3, 2.5, "text", SCALAR, np.float32(1)])
def test_one_sample(batch):
    assert size_of(batch) == 1


@pytest.mark.parametrize(
    "batch",
    [None, {}, ["a", "b"], [SCALAR], object(), Unsure(), SimpleNamespace(batch_size=SCALAR)],
)
def test_nobody_knows(batch):
    assert size_of(batch) is None


@pytest.mark.parametrize(
    "batch", [[torch.zeros(3, 8, 8), [torch.zeros(2, 4)]], {"a": FIVE, "b": torch.zeros(6)}]
)
def test_tensors_that_differ(batch):
    assert is_ambiguous(batch)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ([torch.zeros(3, 8, 8)] * 5, True),
        (([torch.zeros(1, 8, 8)] * 5, [{"boxes": torch.zeros(1, 4)}] * 5), True),
        ([torch.zeros(20)] * 8, True),
        ([FIVE, FIVE], False),
        ([torch.zeros(32, 10, 4)] * 2, False),
        ({"x": torch.zeros(3, 8, 8), "y": torch.zeros(3, 8, 8)}, False),
    ],
)
def test_a_list_of_samples_that_were_not_stacked_is_ambiguous(batch, expected):
    assert is_ambiguous(batch) is expected
