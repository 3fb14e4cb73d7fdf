"""A model that can't see a part of the sequence is refused with the reason, at the first call or
where it changes.
"""

import re
from functools import cache

import pytest
import torch
from language import HEADS, WIDTH, WORDS, Block, Net, on, refusal, words_of
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class _Again(Block):
    def forward(self, x):
        own = super().forward
        return checkpoint(own, x, use_reentrant=True) if torch.is_grad_enabled() else own(x)


class _Saving(Net):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(_Again() for _ in range(2))


class _Local(Net):
    def forward(self, words, places):
        return super().forward(words, torch.arange(words.shape[1]).expand_as(words))


class _Mean(Net):
    def forward(self, words, places):
        return super().forward(words, places).mean()


class _Masked(Net):
    def forward(self, words, places):
        x = self.start.embed(words).unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
        mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool)
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask).transpose(1, 2)


class _Odd(Net):
    def forward(self, words, places):
        x = self.start.embed(words).unsqueeze(1)
        return functional.scaled_dot_product_attention(x, x, x).squeeze(1)


class _Batches(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)


class _Looks(Net):
    """Looks at its answer, or at what it was given."""

    def __init__(self):
        super().__init__()
        self.num_words = self.num_calls = 0
        self.register_buffer("mean", torch.zeros(WORDS))

    def forward(self, words, places):
        self.num_calls += 1
        answer = super().forward(words, places)
        self.look(words, answer)
        return answer

    def log(self, name, value):
        """As a module of the Trainer has it."""


class _Keeps(_Looks):
    def look(self, words, answer):
        self.balance = answer.square().mean()


class _Logs(_Looks):
    def look(self, words, answer):
        self.log("mean", answer.mean())


class _Average(_Looks):
    def look(self, words, answer):
        if self.training:
            self.mean.lerp_(answer.detach().mean((0, 1)), 0.1)


class _Counting(_Looks):
    def look(self, words, answer):
        self.num_words += words.numel()


class _Divides(Net):
    """Divides by the length that it sees."""

    def forward(self, words, places):
        return super().forward(words, places) / (2 * words.size(dim=1) + 1.0)


class _NoSequence(Net):
    def forward(self, words, places):
        return functional.linear(words.float(), torch.zeros(2, 8))


class _Gated(Net):
    """Looks at neighbours, of which parts of a sequence lack one, once it has learned to."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))

    def mixes(self):
        return self.gate

    def forward(self, words, places):
        answer = super().forward(words, places)
        return answer + self.mixes() * answer.roll(1, 1)


class _InTraining(_Gated):
    def mixes(self):
        return float(self.training)


class _Packed(Net):
    """Attends within packed samples, which it finds by their positions as transformers does."""

    def forward(self, words, places):
        answer = super().forward(words, places)
        borders = (places.diff(dim=1) != 1).sum(1) > 0
        return answer + borders[:, None, None].to(answer)


class _KeepsLater(Net):
    """Keeps a loss of its own, from the second call on."""

    keeps = False

    def forward(self, words, places):
        answer = super().forward(words, places)
        if self.keeps:
            self.loss = answer.square().mean()
        self.keeps = True
        return answer


def _once(model, net):
    model(*words_of(3, 8))


def _odd(model, net):
    model(*words_of(3, 7))


def _twice(model, net):
    _once(model, net)
    _once(model, net)


def _in_evaluation(model, net):
    net.eval()
    _once(model, net)
    net.train()
    _once(model, net)


def _with_borders(model, net):
    _once(model, net)
    words, places = words_of(3, 8)
    model(
        words,
        torch.cat([places[:, :4], places[:, :4]], 1).where(torch.arange(3)[:, None] == 1, places),
    )


_OTHER = "computes other values where each of 2 ranks has a part of the sequence"
_AT_FIRST = {
    _NoSequence: (
        _once,
        "Each of 2 ranks called _NoSequence with a part of dim 1, .* name its dim by context_dim=",
    ),
    _Average: (
        _once,
        "^_Average changes 'mean' in itself, and to other values where each of 2 ranks has a part",
    ),
    _Counting: (_once, "^_Counting changes 'num_words' in itself"),
    _Divides: (
        _once,
        rf"_Divides {_OTHER}\. At the first difference it computes \w*div\w* with a size of its part",
    ),
    _Keeps: (
        _once,
        "_Keeps keeps a tensor with a graph in its attribute 'balance'.* or of a part of the "
        "sequence",
    ),
    _Logs: (
        _once,
        r"self\.log\('mean'\) was called by a part of the model, of which this rank computes its "
        r"own alone",
    ),
    _Local: (
        _once,
        rf"_Local {_OTHER}\. At the first difference it computes add \(.*\.py:\d+\)\. Positions must be",
    ),
    _Mean: (
        _once,
        r"_Mean returned a tensor of shape \(\), whose dim 1 isn't the 4 positions of this rank",
    ),
    _Masked: (
        _once,
        r"of shape \(4, 4\), .* this rank's 4 of 8 positions .* \(\.\.\., 8, 8\) or \(samples, 8\)",
    ),
    _Odd: (_once, r"context=2 doesn't divide its heads .*context_attention='gather'"),
    _Batches: (_once, "BatchNorm1d 'norm' would take its statistics from a rank's part"),
    _Saving: (_once, "Attention ran without gradients inside of a call that has them"),
    Net: (_odd, r"a sequence of 7 \(dim 1 of shape \(3, 7\)\), which context=2 doesn't divide"),
}
_LATER = {
    _InTraining: (_in_evaluation, f"_InTraining {_OTHER}"),
    _Gated: (_once, f"_Gated {_OTHER}"),
    _Packed: (_with_borders, f"_Packed {_OTHER}"),
    _KeepsLater: (_twice, "_KeepsLater keeps a tensor with a graph in its attribute 'loss'"),
}


@cache
def _errors(is_later):
    """The errors on each rank by the model, of one group for all."""
    table = _LATER if is_later else _AT_FIRST
    return on(context=2).run(_all_errors, table)


def _all_errors(rank, table):
    return {make: refusal(rank, make, call) for make, (call, _) in table.items()}


@pytest.mark.slow
@pytest.mark.parametrize("make", _AT_FIRST)
def test_models_that_cannot_see_a_part_are_refused_with_the_reason(make):
    for of_rank in _errors(False):
        assert re.search(_AT_FIRST[make][1], of_rank[make])


@pytest.mark.parametrize("make", _LATER)
def test_what_held_at_the_first_call_is_compared_again(make):
    for of_rank in _errors(True):
        assert re.search(_LATER[make][1], of_rank[make])


def test_what_ranks_change_and_draw_alike_is_changed_once_a_call():
    class _Counted(Net):
        """Counts calls, and changes a buffer alike on all ranks; leaves out layers by draws of one
        number, and drops.

        A rank that left out another layer would wait.
        """

        def __init__(self):
            super().__init__()
            self.num_calls, self.worst = 0, torch.tensor(float("nan"))
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))

        def forward(self, words, places):
            self.num_calls += 1
            self.calls += 1
            x = self.start(words, places)
            for block in [*self.blocks, *self.blocks]:
                if not self.training or torch.rand(()) > 0.5:
                    x = functional.dropout(block(x), 0.5, self.training)
            return self.head(x)

    def counts(rank):
        fabric, module = rank.fabric(), _Counted()
        model = fabric.setup(module)
        for _ in range(6):
            model(*words_of(3, 8)).sum().backward()
        fabric.teardown()
        return [module.num_calls, int(module.calls)]

    assert on(context=2).run(counts) == [[6, 6], [6, 6]]
