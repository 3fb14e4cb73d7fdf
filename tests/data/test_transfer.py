from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from core.data import make_transfer, map_leaves, to_device
from core_testing import Backend

CPU, META = torch.device("cpu"), torch.device("meta")
Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    label: str


class Graph:
    """Moves itself."""

    def __init__(self, nodes):
        self.nodes = nodes

    def to(self, device):
        return Graph(self.nodes.to(device))


def x():
    return torch.ones(2)


@pytest.mark.parametrize(
    ("data", "num_tensors"),
    [
        (x(), 1),
        ([x(), "text", {"y": x()}], 2),
        ((x(), "text", {"y": x()}), 2),
        (Pair(x(), [x()]), 2),
        *(
            (kind({"b": x(), "a": (x(), 3)}), 2)
            for kind in (dict, OrderedDict, UserDict, MappingProxyType)
        ),
        (defaultdict(list, y=x()), 1),
        (Sample(x(), "cat"), 1),
        (torch.ones(2, 2).max(dim=0), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_container_is_rebuilt_on_the_device_and_stays_where_it_is(data, num_tensors):
    def devices(batch):
        found = []
        map_leaves(lambda leaf: found.append(leaf) or leaf, batch)
        return [leaf.device for leaf in found if isinstance(leaf, torch.Tensor)]

    moved = to_device(data, META)
    assert type(moved) is type(data)
    assert devices(moved) == [META] * num_tensors
    assert devices(data) == [CPU] * num_tensors
    assert to_device(data, CPU) is data, "what is there already stays the same object"


def test_what_moves_itself_is_asked_to():
    graph = Graph(x())
    assert to_device(graph, META).nodes.device == META
    assert graph.nodes.device == CPU


def test_what_is_no_tensor_is_kept_in_its_place():
    assert to_device([x(), "text", 1, None], META)[1:] == ["text", 1, None]
    assert list(to_device({"b": x(), "a": 3}, META)) == ["b", "a"]
    assert to_device(defaultdict(list, y=x()), META)["new"] == []
    assert to_device(Sample(x(), "cat"), META).label == "cat"


def test_a_frozen_attrs_class_is_rebuilt():
    attr = pytest.importorskip("attr")
    sample = attr.make_class("Sample", ["image", "label"], frozen=True, slots=True)(
        torch.ones(2), "a"
    )
    moved = to_device(sample, META)
    assert (moved.image.device.type, moved.label, sample.image.device.type) == ("meta", "a", "cpu")


def test_a_dataclass_is_not_initialized_again():
    @dataclass(slots=True)
    class Mutable:
        image: torch.Tensor
        derived: torch.Tensor | None = None

        def __post_init__(self):
            self.derived = self.image + 1

    data = Mutable(x())
    data.derived = torch.zeros(3)
    assert to_device(data, META).derived.shape == (3,)


def test_an_object_that_moves_in_place_and_returns_nothing():
    class MovesInPlace(Graph):
        def to(self, device):
            self.nodes = self.nodes.to(device)

    graph = MovesInPlace(x())
    assert to_device((graph,), META)[0] is graph
    assert graph.nodes.device == META


def test_a_packed_sequence_goes_to_the_device():
    packed = pack_sequence([torch.ones(3), torch.ones(1)])
    moved = to_device(packed, META)
    assert type(moved) is type(packed)
    assert moved.data.device == META
    assert moved.batch_sizes.device == CPU


def test_anything_else_stays_what_it_is():
    class Unknown: ...

    batch = [Unknown(), {1, 2}, b"bytes", 3.0, range(3), Sample]
    assert to_device(batch, META) is batch


def to_half(tensor):
    return tensor.half()


def test_floating_point_tensors_are_converted_after_the_transfer():
    moved = to_device(
        {"image": x(), "label": torch.arange(2), "mask": torch.tensor([True])}, META, to_half
    )
    assert [tensor.dtype for tensor in moved.values()] == [torch.float16, torch.int64, torch.bool]
    assert moved["image"].device == META


def test_a_mapping_that_moves_itself_is_converted_too():
    class Encoding(UserDict):
        """A mapping with a `to` and something else besides, as tokenizers return it."""

        def __init__(self, data, source=None):
            super().__init__(data)
            self.source = source

        def to(self, device):
            return Encoding({key: value.to(device) for key, value in self.items()}, self.source)

    moved = to_device(Encoding({"pixels": x()}, source="disk"), CPU, to_half)
    assert type(moved) is Encoding
    assert moved["pixels"].dtype == torch.float16
    assert moved.source == "disk"


def test_a_packed_sequence_is_converted_too():
    data = pack_sequence([torch.ones(2)])
    moved = to_device(data, CPU, to_half)
    assert type(moved) is type(data)
    assert moved.data.dtype == torch.float16
    assert moved.batch_sizes.dtype == torch.int64


def test_gradients_flow_back_through_a_conversion():
    weight = torch.ones(2, requires_grad=True)
    to_device([weight], CPU, to_half)[0].sum().backward()
    assert weight.grad.tolist() == [1.0, 1.0]


def test_on_the_cpu_without_conversion_nothing_has_to_be_called():
    assert make_transfer(CPU) is None
    assert make_transfer(CPU, to_half)([x()])[0].dtype == torch.float16
    assert make_transfer(META)([x()])[0].device == META


def test_map_leaves_reaches_numbers_and_keeps_structure():
    assert map_leaves(lambda leaf: leaf * 2, {"a": [1, 2.5], "b": Pair(3, "x")}) == {
        "a": [2, 5.0],
        "b": Pair(6, "xx"),
    }


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.device_count(), reason="needs a CUDA device")
def test_pinned_memory_is_copied_without_waiting():
    def copy_pinned_memory(rank):
        device = torch.device("cuda", 0)
        batch = to_device({"x": torch.arange(1000.0).pin_memory()}, device)
        torch.cuda.synchronize()
        assert batch["x"].device == device
        assert batch["x"].sum().item() == 499500

    Backend(lambda: "single_device").run(copy_pinned_memory)
