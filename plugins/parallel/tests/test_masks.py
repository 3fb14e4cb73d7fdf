"""Attention with masks, of which each rank of a context group has what it computes, equals that of one device."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from axes import HEADS, WIDTH, WORDS, on_mesh
from torch import Tensor, nn
from torch.nn import functional

from core import ModuleError

if TYPE_CHECKING:
    from core_testing.ranks import Rank

SAMPLES, LENGTH = 3, 8
_BOTH = pytest.mark.parametrize("attention", ["ulysses", pytest.param("gather", marks=pytest.mark.slow)])


def differences(rank: Rank, make: Any, *calls: Any) -> list[float]:
    """For each call, by how much answers and gradients differ from those of one device."""
    found = []
    for args, kwargs in calls:
        fabric = rank.fabric()
        torch.manual_seed(0)
        module = make().double()
        whole = copy.deepcopy(module)
        answer, expected = fabric.setup(module)(*args, **kwargs), whole(*args, **kwargs)
        values, others = ([getattr(one, "logits", one)] for one in (answer, expected))
        fabric.backward(values[0].square().mean())
        others[0].square().mean().backward()
        values += [one.grad for one in module.parameters() if one.grad is not None]
        others += [one.grad for one in whole.parameters() if one.grad is not None]
        found.append(max(float((one - other).detach().abs().max()) for one, other in zip(values, others, strict=True)))
        fabric.teardown()
    return found


def _words() -> Tensor:
    return torch.randint(0, WORDS, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(1))


def _padding(side: str) -> Tensor:
    places, number = torch.arange(LENGTH), torch.tensor([[0], [2], [5]])
    return ((places < LENGTH - number) if side == "right" else (places >= number)).long()


class _Net(nn.Module):
    """Attention with a mask, and a bias of its own for each head and pair of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.bias = nn.Parameter(torch.randn(HEADS, LENGTH, LENGTH))

    def forward(self, words: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        x = self.embed(words).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for one in (mask, self.bias):
            given = one[:, None, None].bool() if one is not None and one.dtype == torch.long else one
            x = x + functional.scaled_dot_product_attention(x, x * 2, x, given, is_causal=is_causal and given is None)
        return self.out(x.transpose(1, 2).flatten(2))


def _calls_with_masks() -> list[Any]:
    draws = torch.Generator().manual_seed(2)
    between = torch.rand(SAMPLES, 1, LENGTH, LENGTH, generator=draws) > 0.3
    heads = torch.randn(1, HEADS, LENGTH, LENGTH, generator=draws).double()
    masks = [between[0, 0], between, between[:1], heads, heads[0, :1], _padding("left"), None]
    return [((_words(), one, True), {}) for one in masks]


@_BOTH
def test_a_mask_of_ones_own_is_exact(attention: str) -> None:
    found, _ = on_mesh(2, 1, context=2, context_attention=attention).run(differences, _Net, *_calls_with_masks())
    assert max(found) < 1e-12, found


class _Local(_Net):
    def forward(self, words: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        local = torch.ones(words.shape[1], words.shape[1], dtype=torch.bool).tril()
        return super().forward(words, local)


def _refusal(rank: Rank, make: Any, *args: Any) -> str:
    with pytest.raises(ModuleError) as caught:
        rank.fabric().setup(make())(*args)
    return str(caught.value)


def test_a_mask_made_of_a_part_is_refused_with_what_to_give() -> None:
    expected = (
        r"mask of shape \(4, 4\), which was made of this rank's 4 of 8 positions .* \(\.\.\., 8, 8\) or \(samples, 8\)"
    )
    for error in on_mesh(2, 1, context=2).run(_refusal, _Local, _words()):
        assert re.search(expected, error), error


def _sizes() -> dict[str, Any]:
    names = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    return {**names, "num_attention_heads": 4, "max_position_embeddings": 64}


def _llama() -> Any:
    import transformers

    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **_sizes()))


def _mistral() -> Any:
    import transformers

    config = transformers.MistralConfig(num_key_value_heads=2, sliding_window=3, **_sizes())
    return transformers.MistralForCausalLM(config)


def _bert() -> Any:
    import transformers

    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformers.BertForMaskedLM(transformers.BertConfig(**dropouts, **_sizes()))


def _packed() -> Tensor:
    """Positions of packed samples, one of which crosses the cut, and one of which begins at it."""
    return torch.stack([torch.cat([torch.arange(first), torch.arange(LENGTH - first)]) for first in (3, 4, 6)])


def _calls_of_transformers() -> list[Any]:
    places = torch.arange(LENGTH).expand(SAMPLES, -1)
    left = _padding("left")
    given = [
        {"attention_mask": _padding("right"), "position_ids": places},
        {"attention_mask": left, "position_ids": (left.cumsum(1) - 1).clamp(min=0)},
        {"attention_mask": torch.ones_like(left), "position_ids": places},
        {"position_ids": _packed()},
    ]
    return [((), {"input_ids": _words(), **one}) for one in given]


def _models(rank: Rank) -> list[float]:
    calls = [(args, {**kwargs, "use_cache": False}) for args, kwargs in _calls_of_transformers()]
    found = [one for make in (_llama, _mistral) for one in differences(rank, make, *calls)]
    return found + differences(rank, _bert, *_calls_of_transformers())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "attention"),
    [(2, "ulysses"), pytest.param(2, "gather", marks=pytest.mark.exhaustive), (4, "gather")],
)
def test_padding_packing_and_windows_of_transformers_are_exact(size: int, attention: str) -> None:
    pytest.importorskip("transformers")
    found, *_ = on_mesh(size, 1, context=size, context_attention=attention).run(_models)
    assert max(found) < 1e-12, found


def _eager() -> Any:
    import transformers

    config = transformers.LlamaConfig(num_key_value_heads=2, attn_implementation="eager", **_sizes())
    return transformers.LlamaForCausalLM(config)


@pytest.mark.slow
def test_other_attention_of_transformers_is_refused_by_name() -> None:
    pytest.importorskip("transformers")
    places = torch.arange(LENGTH).expand(SAMPLES, -1)
    for error in on_mesh(2, 1, context=2).run(_refusal, _eager, _words(), None, places):
        assert re.search(r"attn_implementation='eager'.* Load it with attn_implementation='sdpa'", error), error
