"""The JSON form of a state: whatever is accepted comes back, tried with states that nobody thought
of.
"""

import json

import pytest
import torch
from hypothesis import given, settings

from checkpoint.test_plain_state import states
from core.checkpoint.state.tree import Decoder, Encoder, leaf_name
from support.same import assert_same


def there_and_back(state):
    encoder = Encoder()
    text = json.dumps(encoder.encode(state, ()))
    leaves = encoder.leaves
    return Decoder(
        lambda place, dtype, shape, target: leaves[leaf_name(place)],
        lambda place, size: memoryview(bytes(leaves[leaf_name(place)].tolist())),
    ).decode(json.loads(text))


@settings(deadline=None, max_examples=50)
@given(states)
def test_whatever_is_accepted_comes_back(state):
    assert_same(there_and_back({"state": state}), {"state": state})


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, complex("nan-infj")]
)
def test_every_number_comes_back(value):
    assert repr(there_and_back([value])) == repr([value])


def test_keys_that_look_like_tags_are_keys():
    state = {"$tensor": 1, "a": {"$": {"$tuple": [1]}}, "b": {"": {}}}
    assert there_and_back(state) == state


def test_places_of_leaves_are_told_apart():
    tensors = {
        1: torch.zeros(1),
        "1": torch.ones(1),
        (1,): torch.tensor([2.0]),
        "a": [torch.tensor([3.0])],
    }
    assert [value.item() for value in [*list(there_and_back(tensors).values())[:3]]] == [0, 1, 2]
