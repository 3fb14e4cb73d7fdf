"""Whatever is accepted comes back: tried with states that nobody thought of."""

import io
import random
from collections import Counter, OrderedDict

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from core.checkpoint.file.torch_file import unpickle
from core.checkpoint.state.plain_state import to_plain
from support.same import assert_same

text = st.text(st.characters(codec="utf-8"), max_size=10)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    text,
    st.binary(max_size=10),
    st.binary(max_size=10).map(bytearray),
    st.sampled_from(
        [np.float32(0.5), np.int64(3), np.bool_(True), np.str_("a"), np.str_(""), random.getstate()]
    ),
    st.sampled_from(
        [
            {1, 2},
            OrderedDict(a=1),
            Counter("aab"),
            torch.float16,
            torch.Size([1, 2]),
            torch.device("cpu"),
        ]
    ),
)
keys = st.one_of(st.integers(), text, st.binary(max_size=5), st.tuples(text, st.integers()))
array_types = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(endianness="="),
    arrays.floating_dtypes(endianness="="),
    arrays.unicode_string_dtypes(endianness="="),
    arrays.byte_string_dtypes(),
)
some_arrays = arrays.arrays(array_types, arrays.array_shapes(min_dims=0, min_side=0, max_side=3))
states = st.recursive(
    scalars | some_arrays,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=50)
@given(states)
def test_whatever_is_accepted_comes_back(state):
    buffer = io.BytesIO()
    torch.save(to_plain({"state": state}), buffer)
    buffer.seek(0)
    assert_same(unpickle(buffer), {"state": state})
