"""What a file of torch's and a folder have in common: all comes back as it was, or is refused by
its place.
"""

import os
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from checkpoint.steps import names
from core.checkpoint import (
    DistributedCheckpointIO,
    TorchCheckpointIO,
    load_checkpoint,
    newest_valid,
)
from core.contract import CheckpointError, CheckpointNotFoundError
from support.checkpoint_collectives import Alone, save_state
from support.same import assert_same

ALONE = Alone()


@pytest.fixture(params=[TorchCheckpointIO, DistributedCheckpointIO])
def storage(request):
    return request.param()


def there_and_back(storage, path, state):
    save_state(path, state, storage)
    return storage.load_checkpoint(path, collectives=ALONE)


@pytest.mark.parametrize("code", [*"?bhilBHILefdgFDG", "U3", "S3"])
def test_arrays_come_back_as_arrays(storage, path, code):
    array = np.arange(6).reshape(2, 3).astype(code)
    state = {"array": array, "turned": array.T, "empty": array[:0], "scalar": array[0, 0]}
    assert_same(there_and_back(storage, path, state), state)


def test_the_version_of_a_modules_state_comes_back(storage, path):
    state = nn.BatchNorm1d(4).state_dict()
    assert there_and_back(storage, path, {"module": state})["module"]._metadata == state._metadata


FORMS = {
    "float8": lambda: torch.ones(2).to(torch.float8_e4m3fn),
    "large and turned": lambda: torch.arange(3_000_000.0).reshape(1000, 3000).T,
    "wide and turned": lambda: torch.arange(3_000_000.0).reshape(-1, 2).T,
    "expanded": lambda: torch.ones(1).expand(1000),
    "conjugate": lambda: torch.tensor([1 + 2j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j]).conj().imag,
    "parameter": lambda: nn.Parameter(torch.ones(2)),
    "coo": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "bsc": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
}


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize("form", FORMS)
def test_tensors_of_every_form_come_back(storage, path, form):
    tensor = FORMS[form]()
    loaded = there_and_back(storage, path, {"x": tensor})["x"]
    assert (loaded.dtype, loaded.layout, loaded.requires_grad) == (
        tensor.dtype,
        tensor.layout,
        False,
    )
    assert torch.equal(
        loaded.to_dense().to(torch.complex64), tensor.detach().to_dense().to(torch.complex64)
    )


def test_tensors_that_share_memory_are_written_once_and_go_on_sharing_it(storage, path):
    weight = torch.ones(100_000)
    loaded = there_and_back(storage, path, {"tied": [weight, weight, weight.view(10, -1)]})
    files = [path] if path.is_file() else path.iterdir()
    assert sum(file.stat().st_size for file in files) < weight.nbytes + 10_000
    loaded["tied"][0].fill_(7)
    assert loaded["tied"][1][0] == loaded["tied"][2][0, 0] == 7


def test_a_loaded_state_is_the_process_own(storage, path):
    loaded = there_and_back(storage, path, {"x": torch.ones(100_000)})
    loaded["x"].fill_(5)
    assert load_checkpoint(path)["x"].sum() == 100_000
    shutil.rmtree(path) if path.is_dir() else os.truncate(path, 0)
    assert loaded["x"].sum() == 500_000


# What is refused.


class Foo:
    pass


class HasState:
    def state_dict(self):
        return {}


ENDLESS = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            {"x": [0, Foo()]},
            f"state['a']['x'][1] is a {Foo.__module__}.Foo, which a checkpoint can't hold",
        ),
        ([Foo()], "Expected numbers, strings, bytes, None"),
        (lambda: None, "builtins.function"),
        (HasState(), r"Save its state_dict() instead."),
        (np.array([Foo()]), "NumPy array of type '|O'"),
        (np.array(["2024-01-01"], "M8[D]"), "NumPy array of type '<M8[D]'"),
        (np.zeros(2, ">f4"), "Expected numbers or strings in this machine's byte order"),
        (frozenset(), "builtins.frozenset"),
        (range(3), "builtins.range"),
        (torch.finfo, "builtins.type"),
        (torch.ones(2, device="meta"), "on the meta device, which has no values"),
        (nn.UninitializedParameter(), "UninitializedParameter"),
        ("\ud800", "lone surrogate"),
        (1 << 5000, "an int of 5001 bits"),
        ((1, -(1 << 3000), 2), "state['a'][1] is an int of 3001 bits; at most 2039 can be"),
        ({Foo(): 1}, "the key <"),
        ({Foo(): torch.ones(1)}, "the key <"),
        (type("Number", (int,), {})(3), "Number, which a checkpoint can't hold"),
        (type("Pair", (tuple,), {})((1, 2)), "Pair, which a checkpoint can't hold"),
        (ENDLESS, "nested too deeply to be saved"),
    ],
)
def test_what_could_not_come_back_is_refused(storage, path, value, expected):
    with pytest.raises(CheckpointError) as caught:
        save_state(path, {"a": value}, storage)
    assert "state['a']" in str(caught.value) or value is ENDLESS
    assert expected in str(caught.value)
    assert names(path.parent) == [], "something was written"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_refused_by_its_path(storage, path, layout):
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)
    with pytest.raises(
        CheckpointError, match=r"state\['x'\] is a nested tensor, .* tensor\.unbind\(\) gives them"
    ):
        save_state(path, {"x": nested}, storage)


# What is not there.


def test_a_missing_checkpoint_names_its_neighbours(storage, path):
    save_state(path, {"x": 1}, storage)
    with pytest.raises(
        CheckpointNotFoundError, match=r"no checkpoint .*lats.ckpt'. In that folder are: last.ckpt"
    ):
        load_checkpoint(path.with_name("lats.ckpt"))
    save_state(path.with_name("first.ckpt"), {"x": 1}, storage)
    with pytest.raises(FileNotFoundError, match=r"In that folder are: first.ckpt, last.ckpt\."):
        load_checkpoint(path.with_name("epoch=3.pt"))


def test_a_missing_folder_and_an_empty_one(storage, path):
    path.with_name("lats.py").touch()
    with pytest.raises(CheckpointNotFoundError, match="No checkpoint is in that folder"):
        storage.load_checkpoint(path, collectives=ALONE)
    with pytest.raises(CheckpointNotFoundError, match="nor its folder"):
        storage.load_checkpoint(path / "a" / "b", collectives=ALONE)


def test_a_file_url_may_be_as_the_path_itself_writes_it(storage, tmp_path):
    """With a space, a letter outside ASCII and a percent sign."""
    folder = tmp_path / "Läufe von heute, 100 %"
    folder.mkdir()
    url = (folder / "last.ckpt").as_uri()
    save_state(url, {"x": 1}, storage)
    assert names(folder.parent) == [folder.name]
    assert storage.exists(url)
    assert load_checkpoint(url) == load_checkpoint(f"file://{folder}/last.ckpt") == {"x": 1}
    assert newest_valid(folder.as_uri(), storage=storage) == str(folder / "last.ckpt")
