"""Attention with masks, of which each rank of a context group has what it computes, equals that of
one device.
"""

import re
from functools import partial

import pytest
import torch
from language import HEADS, WIDTH, WORDS, differences, on, refusal, transformers_model, words_of
from torch import nn
from torch.nn import functional

SAMPLES, LENGTH = 3, 8
_WORDS, _PLACES = words_of(SAMPLES, LENGTH)
_LEFT = (torch.arange(LENGTH) >= torch.tensor([[0], [2], [5]])).long()
"""A mask of samples that are padded on the left."""


@pytest.mark.parametrize("attention", ["ulysses", pytest.param("gather", marks=pytest.mark.slow)])
def test_a_mask_of_ones_own_is_exact(attention):
    class _Net(nn.Module):
        """Attention with a mask, and a bias of its own for each head and pair of positions."""

        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
            self.bias = nn.Parameter(torch.randn(HEADS, LENGTH, LENGTH))
            self.double()

        def forward(self, words, mask=None):
            x = self.embed(words).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for one in (mask, self.bias):
                given = (
                    one[:, None, None].bool()
                    if one is not None and one.dtype == torch.long
                    else one
                )
                x = x + functional.scaled_dot_product_attention(
                    x, x * 2, x, given, is_causal=given is None
                )
            return self.out(x.transpose(1, 2).flatten(2))

    def _masks():
        draws = torch.Generator().manual_seed(2)
        between = torch.rand(SAMPLES, 1, LENGTH, LENGTH, generator=draws) > 0.3
        heads = torch.randn(1, HEADS, LENGTH, LENGTH, generator=draws).double()
        return [between[0, 0], between, between[:1], heads, heads[0, :1], _LEFT, None]

    def _with(mask, model):
        return model(_WORDS, mask).square().mean()

    calls = [partial(_with, mask) for mask in _masks()]
    found = on(context=2, context_attention=attention).run(differences, _Net, calls)[0]
    assert max(found) < 1e-12, found


_UNCACHED = {"use_cache": False}


@pytest.mark.slow
@pytest.mark.parametrize(("size", "attention"), [(2, "ulysses"), (4, "gather")])
def test_padding_packing_and_windows_of_transformers_are_exact(size, attention):
    def of_library(given, model):
        return model(input_ids=_WORDS, **given).logits.square().mean()

    def models(rank):
        # Positions of packed samples, one of which crosses the cut, and one of which begins at it.
        packed = [
            torch.cat([torch.arange(first), torch.arange(LENGTH - first)]) for first in (3, 4, 6)
        ]
        calls = [
            {"attention_mask": _LEFT.flip(1), "position_ids": _PLACES},
            {"attention_mask": _LEFT, "position_ids": (_LEFT.cumsum(1) - 1).clamp(min=0)},
            {"attention_mask": torch.ones_like(_LEFT), "position_ids": _PLACES},
            {"position_ids": torch.stack(packed)},
        ]
        decoding, encoding = (
            [partial(of_library, {**given, **more}) for given in calls] for more in (_UNCACHED, {})
        )
        found = differences(rank, lambda: transformers_model("Llama").double(), decoding)
        found += differences(
            rank, lambda: transformers_model("Mistral", sliding_window=3).double(), decoding
        )
        dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return found + differences(
            rank, lambda: transformers_model("Bert", **dropouts).double(), encoding
        )

    pytest.importorskip("transformers")
    found = on(context=size, context_attention=attention).run(models)[0]
    assert max(found) < 1e-12, found


@pytest.mark.slow
def test_other_attention_of_transformers_is_refused_by_name():
    pytest.importorskip("transformers")
    make = partial(transformers_model, "Llama", attn_implementation="eager")
    for error in on(context=2).run(refusal, make, lambda model, net: model(_WORDS, None, _PLACES)):
        assert re.search(
            r"attn_implementation='eager'.* Load it with attn_implementation='sdpa'", error
        ), error
