"""Losses of a cut sequence, inside the model and in the step, equal those of one device."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from axes import WIDTH, WORDS, Net, assert_equals_one_device, on_mesh
from combined import difference
from torch import Tensor, nn
from torch.nn import functional

from core import ConfigurationError, ModuleError
from core_parallel import MeshParallelStrategy

if TYPE_CHECKING:
    from core_testing.ranks import Rank

SAMPLES, LENGTH = 3, 8


def _words() -> Tensor:
    return torch.randint(0, WORDS, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(1))


def _next_words() -> Tensor:
    """Labels, shifted; of the second sample the first rank has none, and of the third the last."""
    labels = functional.pad(_words(), (0, 1), value=-100)[:, 1:].contiguous()
    labels[1, : LENGTH // 2] = labels[2, LENGTH // 2 :] = -100
    return labels


class _Losing(nn.Module):
    """A model that returns what it computes by position, or its loss of the next words."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = Net(), nn.Linear(WORDS, WORDS, bias=False)

    def forward(self, words: Tensor, places: Tensor, form: str = "", labels: Tensor | None = None) -> Any:
        hidden = self.net(words, places)
        if not form:
            return hidden
        logits = self.head(hidden)
        if labels is None:
            return logits
        forms: dict[str, Any] = {
            "mean": lambda: nn.CrossEntropyLoss()(logits.flatten(0, 1), labels.flatten()),
            "sum": lambda: functional.cross_entropy(logits.transpose(1, 2), labels, reduction="sum") / 7,
            "linear": lambda: functional.linear_cross_entropy(
                hidden.flatten(0, 1), self.head.weight, labels.flatten(), label_smoothing=0.1
            ),
            "checkpoint": lambda: torch.utils.checkpoint.checkpoint(
                lambda some: functional.cross_entropy(self.head(some).flatten(0, 1), labels.flatten()),
                hidden,
                use_reentrant=False,
            ),
        }
        return forms[form](), logits


def _inside(form: str) -> Any:
    return lambda model, words, places: model(words, places, form, _next_words())[0]


def _mean(model: Any, words: Tensor, places: Tensor) -> Tensor:
    logits = model(words, places, "logits")
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())


def _weighted(model: Any, words: Tensor, places: Tensor) -> Tensor:
    logits = model(words, places, "logits").permute(0, 2, 1)
    return functional.cross_entropy(logits, _next_words(), weight=torch.arange(1.0, WORDS + 1).double())


def _sum_of_two(model: Any, words: Tensor, places: Tensor) -> Tensor:
    logits, labels = model(words, places, "logits"), _next_words()
    one = functional.cross_entropy(logits.float().double()[..., 1:, :].reshape(-1, WORDS), labels[:, 1:].reshape(-1))
    other = functional.nll_loss((logits / 2).log_softmax(-1).transpose(1, 2), labels, reduction="sum")
    return one + other / 5


def _linear(model: Any, words: Tensor, places: Tensor) -> Tensor:
    hidden, weight = model(words, places), getattr(model, "module", model).head.weight
    return functional.linear_cross_entropy(hidden.view(-1, WORDS), weight, _next_words().flatten())


_STEPS = {
    **{form: _inside(form) for form in ("mean", "sum", "linear", "checkpoint")},
    **{"in the step": _mean, "weighted": _weighted, "of two": _sum_of_two, "linear in the step": _linear},
}


def _differences(rank: Rank) -> dict[str, float]:
    """By how much the loss and the gradients of each step differ from those of one device."""
    found = {}
    for name, step in _STEPS.items():
        fabric = rank.fabric()
        torch.manual_seed(0)
        model = _Losing().double()
        whole = copy.deepcopy(model)
        given = _words(), torch.arange(LENGTH).expand(SAMPLES, -1)
        loss, expected = step(fabric.setup(model), *given), step(whole, *given)
        fabric.backward(loss)
        expected.backward()
        pairs = [(loss, expected)]
        pairs += [
            (one.grad, other.grad)
            for one, other in zip(model.parameters(), whole.parameters(), strict=True)
            if other.grad is not None
        ]
        found[name] = max(float((one - other).detach().abs().max()) for one, other in pairs)
        fabric.teardown()
    return found


@pytest.mark.parametrize("kept", [pytest.param("whole", marks=pytest.mark.slow), "local"])
def test_losses_are_those_of_one_device(kept: str) -> None:
    for found in on_mesh(2, 1, context=2, context_loss=kept).run(_differences):
        assert max(found.values()) < 1e-14, found


_WINDOW = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3, "max_steps": 3}  # of two epochs


@pytest.mark.numbers
@pytest.mark.parametrize(
    ("sizes", "num_processes", "data_parallel_size"),
    [
        ({"context": 2}, 2, 1),
        pytest.param({"context": 2, "data": 2}, 4, 2, marks=pytest.mark.slow),
        pytest.param({"context": 2, "tensor": 2}, 4, 1, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_steps_on_parts_equal_one_device(sizes: dict[str, Any], num_processes: int, data_parallel_size: int) -> None:
    mesh = on_mesh(num_processes, data_parallel_size, context_loss="local", **sizes)
    assert_equals_one_device(mesh, **_WINDOW)


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize("schedule", [None, "1F1B"])
def test_pipelines_of_parts_equal_one_device(schedule: str | None) -> None:
    mesh = {"context": 2, "pipeline": 2, "schedule": schedule, "context_loss": "local"}
    assert difference(mesh, 4, _WINDOW) < 1e-12


class _Wrong(_Losing):
    def forward(self, words: Tensor, places: Tensor, form: str = "", labels: Tensor | None = None) -> Any:
        logits = super().forward(words, places, "logits")
        if form == "shift":
            return functional.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())
        loss = functional.cross_entropy(logits.flatten(0, 1), words.flatten())
        return loss + logits.square().mean()


def _refusals(rank: Rank) -> list[str]:
    model, found = rank.fabric().setup(_Wrong()), []
    for form in ("shift", "mean beside"):
        with pytest.raises(ModuleError) as caught:
            model(_words(), torch.arange(LENGTH).expand(SAMPLES, -1), form)
        found.append(str(caught.value))
    return found


def test_what_else_a_loss_inside_looks_at_is_refused() -> None:
    for errors in on_mesh(2, 1, context=2).run(_refusals):
        assert all("by cross_entropy, of labels that were shifted before the call" in one for one in errors), errors


def _uses(rank: Rank) -> list[Any]:
    model = rank.fabric().setup(_Losing().double())
    words, places = _words(), torch.arange(LENGTH).expand(SAMPLES, -1)
    logits = model(words, places, "logits")
    assert (logits.shape, logits.dtype) == ((SAMPLES, LENGTH, WORDS), torch.float64)
    assert logits.requires_grad
    assert logits.local().shape == (SAMPLES, LENGTH // 2, WORDS)
    assert torch.equal(logits.argmax(-1), logits.whole().argmax(-1))
    assert torch.equal(logits[:, 3:7].whole(), logits.whole()[:, 3:7])
    assert torch.equal(logits.flatten(0, 1).whole(), logits.whole().flatten(0, 1))
    refused = []
    uses: dict[str, Any] = {
        "mean": lambda: logits.mean(),
        "add": lambda: logits + torch.ones(WORDS),
        "numpy": lambda: logits.detach().numpy(),
        "item": lambda: logits[0, 0, 0].item(),
        "cat": lambda: torch.cat([logits, logits]),
        "part": lambda: functional.cross_entropy(logits.flatten(0, 1), words.flatten()[: SAMPLES * LENGTH // 2]),
        "none": lambda: functional.cross_entropy(logits.flatten(0, 1), words.flatten(), reduction="none"),
    }
    for name, use in uses.items():
        with pytest.raises(ModuleError, match=r"with context_loss='local'|must be of the whole sequence"):
            use()
        refused.append(name)
    return refused


def test_only_what_is_right_is_done_with_a_part() -> None:
    for refused in on_mesh(2, 1, context=2, context_loss="local").run(_uses):
        assert len(refused) == 7


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"context": 2, "context_loss": "parts"}, "context_loss='parts': expected 'whole' or 'local'"),
        ({"tensor": 2, "pipeline": 2, "tensor_loss": "local"}, "tensor_loss='local') isn't there yet with a pipeline"),
        ({"tensor": 2, "context": 2, "tensor_loss": "local"}, "Give context_loss='local' too."),
    ],
    ids=str,
)
def test_options_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(error)):
        MeshParallelStrategy(**options)


class _Vocabulary(nn.Module):
    """Net with a vocabulary that two ranks can share, cut with its embedding."""

    tensor_parallel_plan = {
        **{f"net.{name}": word for name, word in Net.tensor_parallel_plan.items()},
        "net.embed": "embedding_rowwise",
        "net.head": "colwise_gather_output",
    }

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.net.embed, self.net.head = nn.Embedding(12, WIDTH), nn.Linear(WIDTH, 12)

    def forward(self, words: Tensor, places: Tensor) -> Any:
        return self.net(words, places)


def _of_vocabulary(model: Any, words: Tensor, places: Tensor) -> Any:
    logits, labels = model(words, places), _next_words()
    one = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, :-1].flatten())
    other = functional.cross_entropy(logits.transpose(1, 2) / 2, labels, reduction="sum", label_smoothing=0.1)
    return [one, other / 5, nn.CrossEntropyLoss()(logits.float().double().view(-1, 12), labels.view(-1))]


def _differences_of_vocabulary(rank: Rank) -> list[float]:
    fabric = rank.fabric()
    torch.manual_seed(0)
    model = _Vocabulary().double()
    whole = copy.deepcopy(model)
    given = _words(), torch.arange(LENGTH).expand(SAMPLES, -1)
    ready = fabric.setup(model)
    losses, expected = _of_vocabulary(ready, *given), _of_vocabulary(whole, *given)
    fabric.backward(torch.stack(losses).sum())
    torch.stack(expected).sum().backward()
    pairs: list[Any] = list(zip(losses, expected, strict=True))
    for one, other in zip(model.parameters(), whole.parameters(), strict=True):
        pairs.append((getattr(one.grad, "full_tensor", lambda grad=one.grad: grad)(), other.grad))
    return [float((one - other).detach().abs().max()) for one, other in pairs]


@pytest.mark.parametrize(
    ("sizes", "num_processes"),
    [({"tensor": 2}, 2), pytest.param({"tensor": 2, "context": 2, "context_loss": "local"}, 4, marks=pytest.mark.slow)],
    ids=str,
)
def test_words_are_cut_over_ranks(sizes: dict[str, Any], num_processes: int) -> None:
    for found in on_mesh(num_processes, 1, tensor_loss="local", **sizes).run(_differences_of_vocabulary):
        assert max(found) < 1e-14, found


def _llama() -> Any:
    import transformers

    sizes: Any = {"vocab_size": 12, "hidden_size": WIDTH, "intermediate_size": 32, "max_position_embeddings": 64}
    heads: Any = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))


def _losses_of_llama(rank: Rank) -> dict[str, float]:
    """As `_differences`. The library computes losses in 32 bits."""
    found = {}
    places = torch.arange(LENGTH).expand(SAMPLES, -1)
    cases: dict[str, Any] = {"mean": {}, "items": {"num_items_in_batch": torch.tensor(17)}}
    for name, kwargs in cases.items():
        fabric = rank.fabric()
        torch.manual_seed(0)
        model = _llama()
        whole = copy.deepcopy(model)
        given = {"input_ids": _words(), "position_ids": places, "labels": _next_words(), "use_cache": False, **kwargs}
        loss, expected = fabric.setup(model)(**given).loss, whole(**given).loss
        fabric.backward(loss)
        expected.backward()
        pairs = [(loss, expected)]
        for one, two in zip(model.parameters(), whole.parameters(), strict=True):
            pairs.append((getattr(one.grad, "full_tensor", lambda grad=one.grad: grad)(), two.grad))
        found[name] = max(float((one - two).detach().abs().max()) for one, two in pairs)
        fabric.teardown()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [{"context": 2, "context_loss": "local"}, {"tensor": 2, "tensor_loss": "local"}], ids=str
)
def test_models_of_transformers_take_labels(sizes: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    for found in on_mesh(2, 1, **sizes).run(_losses_of_llama):
        assert max(found.values()) < 1e-6, found
