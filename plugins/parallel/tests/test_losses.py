"""Losses of a cut sequence, or of a cut vocabulary, inside the model and in the step, equal those
of one device.
"""

import re
from functools import partial

import pytest
import torch
from language import WIDTH, WORDS, Net, differences, on, refusal, transformers_model, words_of
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from core import ConfigurationError, ModuleError
from core_parallel import MeshParallelStrategy

SAMPLES, LENGTH = 3, 8
_GIVEN = _WORDS, _PLACES = words_of(SAMPLES, LENGTH)


def _next_words():
    """Labels, shifted; of the second sample the first rank has none, and of the third the last."""
    labels = functional.pad(_WORDS, (0, 1), value=-100)[:, 1:].contiguous()
    labels[1, : LENGTH // 2] = labels[2, LENGTH // 2 :] = -100
    return labels


class _Losing(nn.Module):
    """A model that returns what it computes by position, or its loss of the next words."""

    def __init__(self):
        super().__init__()
        self.net, self.head = Net(), nn.Linear(WORDS, WORDS, bias=False)
        self.double()

    def forward(self, words, places, form="", labels=None):
        hidden = self.net(words, places)
        return (
            self.lose(form, hidden, labels)
            if labels is not None
            else self.head(hidden)
            if form
            else hidden
        )

    def lose(self, form, hidden, labels):
        if form == "linear":
            flat, smoothing = hidden.flatten(0, 1), {"label_smoothing": 0.1}
            return functional.linear_cross_entropy(
                flat, self.head.weight, labels.flatten(), **smoothing
            )
        if form == "checkpoint":
            return checkpoint(self.lose, "mean", hidden, labels, use_reentrant=False)
        logits = self.head(hidden)
        if form == "sum":
            return functional.cross_entropy(logits.transpose(1, 2), labels, reduction="sum") / 7
        return nn.CrossEntropyLoss()(logits.flatten(0, 1), labels.flatten())


def _inside(form, model):
    return model(*_GIVEN, form, _next_words())


_INSIDE = [partial(_inside, form) for form in ("mean", "sum", "linear", "checkpoint")]


@pytest.mark.parametrize("kept", [pytest.param((), marks=pytest.mark.slow, id="whole"), "context"])
def test_losses_are_those_of_one_device(kept):
    def _linear(model):
        hidden, weight = model(*_GIVEN), getattr(model, "module", model).head.weight
        return functional.linear_cross_entropy(
            hidden.view(-1, WORDS), weight, _next_words().flatten()
        )

    def _mean(model):
        logits = model(*_GIVEN, "logits")
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), _WORDS[:, 1:].flatten())

    def weighted(model):
        logits = model(*_GIVEN, "logits").permute(0, 2, 1)
        return functional.cross_entropy(
            logits, _next_words(), weight=torch.arange(1.0, WORDS + 1).double()
        )

    def sum_of_two(model):
        logits, labels = model(*_GIVEN, "logits"), _next_words()
        one = functional.cross_entropy(
            logits.float().double()[..., 1:, :].reshape(-1, WORDS), labels[:, 1:].reshape(-1)
        )
        other = functional.nll_loss(
            (logits / 2).log_softmax(-1).transpose(1, 2), labels, reduction="sum"
        )
        return one + other / 5

    calls = [*_INSIDE, _mean, weighted, sum_of_two, _linear]
    for found in on(context=2, local_loss=kept).run(differences, _Losing, calls):
        assert max(found) < 1e-14, found


@pytest.mark.parametrize(
    "mesh",
    [{}, pytest.param({"context": 2}, marks=pytest.mark.slow)],
    ids=str,
)
def test_words_are_cut_over_ranks(mesh):
    class _Vocabulary(nn.Module):
        """A vocabulary that two ranks can share, cut with its embedding."""

        tensor_parallel_plan = {
            **{f"net.{name}": word for name, word in Net.tensor_parallel_plan.items()},
            "net.start.embed": "embedding_rowwise",
            "net.head": "colwise_gather_output",
        }

        def __init__(self):
            super().__init__()
            self.net = Net()
            self.net.start.embed, self.net.head = nn.Embedding(12, WIDTH), nn.Linear(WIDTH, 12)
            self.double()

        def forward(self, words, places):
            return self.net(words, places)

    def mean_of_words(model):
        return functional.cross_entropy(
            model(*_GIVEN)[:, :-1].flatten(0, 1), _next_words()[:, :-1].flatten()
        )

    def smoothed(model):
        options = {"reduction": "sum", "label_smoothing": 0.1}
        return (
            functional.cross_entropy(model(*_GIVEN).transpose(1, 2) / 2, _next_words(), **options)
            / 5
        )

    def converted(model):
        return nn.CrossEntropyLoss()(
            model(*_GIVEN).float().double().view(-1, 12), _next_words().view(-1)
        )

    calls = [mean_of_words, smoothed, converted]
    for found in on(tensor=2, local_loss=["tensor", *mesh], **mesh).run(
        differences, _Vocabulary, calls
    ):
        assert max(found) < 1e-14, found


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [{"context": 2, "local_loss": "context"}, {"tensor": 2, "local_loss": "tensor"}],
    ids=str,
)
def test_models_of_transformers_take_labels(mesh):
    def labelled(more, model):
        given = {"position_ids": _PLACES, "labels": _next_words(), "use_cache": False}
        return model(input_ids=_WORDS, **given, **more).loss

    pytest.importorskip("transformers")
    calls = [partial(labelled, more) for more in ({}, {"num_items_in_batch": torch.tensor(17)})]
    for found in on(**mesh).run(
        differences, partial(transformers_model, "Llama", vocab_size=12), calls
    ):
        assert max(found) < 1e-6, found  # the library computes losses in 32 bits


@pytest.mark.parametrize("form", ["shift", "mean beside"])
def test_what_else_a_loss_inside_looks_at_is_refused(form):
    class _Wrong(_Losing):
        def forward(self, words, places, form):
            logits = super().forward(words, places, "logits")
            if form == "shift":
                return functional.cross_entropy(
                    logits[:, :-1].flatten(0, 1), words[:, 1:].flatten()
                )
            return (
                functional.cross_entropy(logits.flatten(0, 1), words.flatten())
                + logits.square().mean()
            )

    for error in on(context=2).run(refusal, _Wrong, lambda model, net: model(*_GIVEN, form)):
        assert "by cross_entropy, of labels that were shifted before the call" in error


def test_only_what_is_right_is_done_with_a_part():
    def _uses(rank):
        logits = rank.fabric().setup(_Losing())(*_GIVEN, "logits")
        assert (logits.shape, logits.dtype) == ((SAMPLES, LENGTH, WORDS), torch.float64)
        assert logits.requires_grad
        assert logits.local().shape == (SAMPLES, LENGTH // 2, WORDS)
        assert torch.equal(logits.argmax(-1), logits.whole().argmax(-1))
        assert torch.equal(logits[:, 3:7].whole(), logits.whole()[:, 3:7])
        assert torch.equal(logits.flatten(0, 1).whole(), logits.whole().flatten(0, 1))
        flat, words = logits.flatten(0, 1), _WORDS.flatten()
        uses = [
            *(logits.mean, lambda: logits + torch.ones(WORDS), lambda: logits[0, 0, 0].item()),
            *(lambda: logits.detach().numpy(), lambda: torch.cat([logits, logits])),
            lambda: functional.cross_entropy(flat, words[: SAMPLES * LENGTH // 2]),
            lambda: functional.cross_entropy(flat, words, reduction="none"),
        ]
        for use in uses:
            with pytest.raises(
                ModuleError, match=r"with local_loss='context'|must be of the whole sequence"
            ):
                use()
        return len(uses)

    assert on(context=2, local_loss="context").run(_uses) == [7, 7]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"context": 2, "local_loss": "parts"},
            "local_loss='parts': expected 'context', 'tensor', or both",
        ),
        (
            {"tensor": 2, "pipeline": 2, "local_loss": "tensor"},
            "local_loss='tensor') isn't there yet with a pipeline",
        ),
        (
            {"tensor": 2, "context": 2, "local_loss": "tensor"},
            "Give local_loss=['context', 'tensor'].",
        ),
    ],
    ids=str,
)
def test_options_are_refused(options, error):
    with pytest.raises(ConfigurationError, match=re.escape(error)):
        MeshParallelStrategy(**options)
