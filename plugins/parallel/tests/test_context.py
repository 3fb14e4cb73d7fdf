"""A sequence cut over a context group computes what one device does, and is refused where it can't."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from axes import HEADS, WIDTH, WORDS, Block, Net, Step, assert_equals_one_device, on_mesh
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from core import CoreError

if TYPE_CHECKING:
    from core_testing.ranks import Rank

_WINDOW = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3, "max_steps": 4}
_AGAIN = {"activation_checkpointing": "units"}


class _Again(Block):
    def forward(self, x: Tensor) -> Tensor:
        own = super().forward
        return checkpoint(own, x, use_reentrant=True) if torch.is_grad_enabled() else own(x)


class _Saving(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Again() for _ in range(2))


@pytest.mark.numbers
@pytest.mark.parametrize(
    ("sizes", "num_processes", "data_parallel_size", "options"),
    [
        ({"context": 2}, 2, 1, _AGAIN),
        ({"context": 2, "context_attention": "gather"}, 2, 1, {}),
        pytest.param({"context": 4}, 4, 1, {}, marks=pytest.mark.slow),
        pytest.param({"context": 4, "context_attention": "gather"}, 4, 1, _AGAIN, marks=pytest.mark.slow),
        pytest.param({"data": 2, "context": 2}, 4, 2, {}, marks=pytest.mark.slow),
        pytest.param({"context": 2, "tensor": 2}, 4, 1, {}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_steps_equal_one_device(
    sizes: dict[str, Any], num_processes: int, data_parallel_size: int, options: dict[str, Any]
) -> None:
    assert_equals_one_device(on_mesh(num_processes, data_parallel_size, **sizes), **_WINDOW, **options)


def _llama() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, **sizes))


class _OfTransformers(Step):
    def __init__(self) -> None:
        super().__init__(_llama)

    def compute(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[1]).expand_as(words)
        return self.net(input_ids=words, position_ids=places, use_cache=False).logits


@pytest.mark.slow
@pytest.mark.numbers
def test_a_transformers_model_is_given_its_positions() -> None:
    pytest.importorskip("transformers")
    assert_equals_one_device(on_mesh(2, 1, context=2), _OfTransformers)


class _Local(Net):
    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        return super().forward(words, torch.arange(words.shape[1]).expand_as(words))


class _Zeros(_Local):
    """Its positions make no difference, until they are learned."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.place.weight)


class _Mean(Net):
    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        return super().forward(words, places).mean()


class _Masked(Net):
    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        x = self.embed(words).unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
        mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool)
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask).transpose(1, 2)


class _Odd(Net):
    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        x = self.embed(words).unsqueeze(1)
        return functional.scaled_dot_product_attention(x, x, x).squeeze(1)


class _Batches(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)


class _Keeps(Net):
    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        answer = super().forward(words, places)
        self.balance = answer.square().mean()
        return answer


class _Logs(Net):
    def log(self, name: str, value: Any) -> None:
        """As a module of the Trainer has it."""

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        answer = super().forward(words, places)
        self.log("mean", answer.mean())
        return answer


class _Average(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WORDS))

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        answer = super().forward(words, places)
        if self.training:
            self.mean.lerp_(answer.detach().mean((0, 1)), 0.1)
        return answer


class _Counting(Net):
    def __init__(self) -> None:
        super().__init__()
        self.num_words, self.num_calls = 0, 0

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        self.num_words, self.num_calls = self.num_words + words.numel(), self.num_calls + 1
        return super().forward(words, places)


class _Caching(Net):
    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        self.blocks[0].last_places = places
        return super().forward(words, places)


class _NoSequence(Net):
    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        return functional.linear(words.float(), torch.zeros(2, 8))


_REFUSED: list[tuple[Any, int, str]] = [
    (
        _NoSequence,
        8,
        r"(?s)mat1 and mat2.* Each of 2 ranks called _NoSequence with a part of dim 1, .* name its dim by context_dim=",
    ),
    (_Average, 8, "^_Average changes 'mean' in itself, and to other values where each of 2 ranks has a part"),
    (_Counting, 8, "^_Counting changes 'num_words' in itself"),
    (_Caching, 8, r"^_Caching changes 'blocks\.0\.last_places' in itself"),
    (_Keeps, 8, "_Keeps keeps a tensor with a graph in its attribute 'balance'.* or of a part of the sequence"),
    (_Logs, 8, r"self\.log\('mean'\) was called by a part of the model, of which this rank computes its own alone"),
    (_Local, 8, "_Local computes other values where each of 2 ranks has a part of the sequence .* Positions must be"),
    (_Zeros, 8, "_Zeros computes other values where each of 2 ranks"),
    (_Mean, 8, r"_Mean returned a tensor of shape \(\), whose dim 1 isn't the 4 positions of this rank"),
    (_Masked, 8, r"was called with a mask of shape \(4, 4\), which was made of this rank's 4 of 8 positions"),
    (_Odd, 8, r"context=2 doesn't divide its heads .*context_attention='gather'"),
    (_Batches, 8, "BatchNorm1d 'norm' would take its statistics from a rank's part"),
    (_Saving, 8, "Attention ran without gradients inside of a call that has them"),
    (Net, 7, r"a sequence of 7 \(dim 1 of shape \(3, 7\)\), which context=2 doesn't divide"),
]


def _call(fabric: Any, module: nn.Module, words: Tensor) -> Tensor:
    return fabric.setup(module)(words, torch.arange(words.shape[1]).expand_as(words))


def _errors(rank: Rank) -> list[str]:
    errors = []
    for make, length, _ in _REFUSED:
        fabric = rank.fabric()
        words = torch.zeros(3, length, dtype=torch.long)
        with pytest.raises((CoreError, RuntimeError)) as caught:
            _call(fabric, make(), words)
        errors.append(" ".join((str(caught.value), *getattr(caught.value, "__notes__", ()))))
        fabric.teardown()
    return errors


@pytest.mark.slow
def test_models_that_cannot_see_a_part_are_refused_with_the_reason() -> None:
    for errors in on_mesh(2, 1, context=2).run(_errors):
        for error, (_, _, expected) in zip(errors, _REFUSED, strict=True):
            assert re.search(expected, error), error


class _Counted(Net):
    """Counts calls, and changes a buffer alike on all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls, self.worst = 0, torch.tensor(float("nan"))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        self.num_calls += 1
        self.calls += 1
        return super().forward(words, places)


def _counts(rank: Rank) -> list[int]:
    fabric, module = rank.fabric(), _Counted()
    model, words = fabric.setup(module), torch.zeros(3, 8, dtype=torch.long)
    for _ in range(3):
        model(words, torch.arange(8).expand_as(words))
    fabric.teardown()
    return [module.num_calls, int(module.calls)]


def test_what_ranks_change_alike_is_changed_once_a_call() -> None:
    assert on_mesh(2, 1, context=2).run(_counts) == [[3, 3], [3, 3]]
