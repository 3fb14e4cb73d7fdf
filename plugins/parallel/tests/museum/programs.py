"""Programs that compute something else where each rank, or microbatch, has a part: as their authors
wrote them.
"""

import torch
from language import HEADS, WIDTH, WORDS, Attention, Net, Step
from torch import nn
from torch.nn import functional

_EXPERTS = 4


def with_attention(attention):
    """A network whose blocks have that attention."""

    class _With(Net):
        def __init__(self):
            super().__init__()
            for block in self.blocks:
                block.attention = attention()

    return _With


def step_with(make):
    """A step that trains such a network."""

    class _Step(Step):
        def __init__(self):
            super().__init__(make)

    return _Step


# a part of the sequence -------------------------------------------------------------------------


class OwnPlaces(Net):
    """Counts places from 0 in what it sees."""

    def forward(self, words, places):
        return super().forward(words, torch.arange(words.shape[1]).expand_as(words))


class RolledWords(Net):
    """Predicts two words ahead, of the next word, which it rolls into place itself."""

    def forward(self, words, places):
        ahead = self.start(words.roll(-1, 1), places)
        return self.behind_start(self.start(words, places) + ahead)


class Convolved(Net):
    """A short causal convolution before the blocks."""

    def __init__(self):
        super().__init__()
        self.mixing = nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH)

    def forward(self, words, places):
        x = self.start(words, places)
        mixed = self.mixing(functional.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        return self.behind_start(x + mixed)


class CountsExperts(Net):
    """Counts how many tokens each expert gets, for a bias of its router."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, _EXPERTS)
        self.register_buffer("counts", torch.zeros(_EXPERTS))

    def forward(self, words, places):
        x = self.start(words, places)
        chosen = (self.gate(x) - 0.01 * self.counts).argmax(-1)
        self.counts += functional.one_hot(chosen, _EXPERTS).sum((0, 1))
        for block in self.blocks:
            x = block(x) * (1 + 0.1 * chosen[..., None])
        return self.head(x)


class Penalized(Net):
    """Adds a penalty of its router's logits to what it returns."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, _EXPERTS)

    def forward(self, words, places):
        logits = super().forward(words, places)
        penalty = self.gate(self.start(words, places)).logsumexp(-1).square().mean()
        return logits + 0.1 * penalty


class Losing(Net):
    """Returns its loss, by one of torch's functions."""

    def forward(self, words, places, targets):
        logits = super().forward(words, places)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Shifting(Net):
    """Returns its loss, and shifts labels within the part that it sees."""

    def forward(self, words, places, targets):
        logits = super().forward(words, places)
        labels = functional.pad(words, (0, 1), value=-100)[:, 1:]
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class DividesByOwnCount(Net):
    """Returns its loss: a sum by hand over the number of labels that it sees."""

    def forward(self, words, places, targets):
        values = super().forward(words, places).log_softmax(-1)
        own = values.gather(-1, targets.clamp(min=0)[..., None])[..., 0] * (targets != -100)
        return -own.sum() / (targets != -100).sum()


class ChancesOfSamples(Net):
    """Returns the logarithm of the chance of each sample, for a loss of preferences."""

    def forward(self, words, places, targets):
        values = super().forward(words, places).log_softmax(-1)
        own = values.gather(-1, targets.clamp(min=0)[..., None])[..., 0] * (targets != -100)
        return -own.sum(1, keepdim=True)


class LossInside(Step):
    """A step whose model computes the loss."""

    make = Losing

    def __init__(self):
        super().__init__(self.make)

    def training_step(self, batch, batch_idx):
        words, targets = batch[0][:, :-1], batch[0][:, 1:]
        targets = targets.where(targets > 1, -100)
        targets[:, :3] = -100
        places = torch.arange(words.shape[1]).expand_as(words)
        loss = self.net(words, places, targets).mean()
        return {"loss": loss, "weight": int((targets != -100).sum())}


class ShiftsInside(LossInside):
    make = Shifting


class CountsInside(LossInside):
    make = DividesByOwnCount


class Preferences(LossInside):
    make = ChancesOfSamples


class Masking(Attention):
    """Attention with a mask that the model is given."""

    def forward(self, x, mask):
        q, k, v = (
            part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        found = functional.scaled_dot_product_attention(q, k, v, mask)
        return self.out(found.transpose(1, 2).flatten(2))


class Packed(Net):
    """A network for packed documents, with a mask between positions."""

    def __init__(self):
        super().__init__()
        for block in self.blocks:
            block.attention = Masking()

    def forward(self, words, places, mask):
        x = self.start(words, places)
        for block in self.blocks:
            x = x + block.attention(block.before(x), mask)
            x = x + block.down(functional.gelu(block.up(block.between(x))))
        return self.head(x)


class PackedStep(Step):
    """Two documents in a row, which don't see each other."""

    def __init__(self):
        super().__init__(Packed)

    def compute(self, words):
        length = words.shape[1]
        documents = torch.arange(length) >= 3
        mask = (documents[:, None] == documents) & torch.ones(length, length).tril().bool()
        return self.net(words, torch.arange(length).expand_as(words), mask[None, None])


# a part of the columns --------------------------------------------------------------------------


class _Heads(Attention):
    """Attention in two parts, for what is done with heads."""

    def forward(self, x):
        q, k, v = self.changed(*(part(x) for part in (self.query, self.key, self.value)))
        q, k, v = (one.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for one in (q, k, v))
        found = self.attended(q, k, v)
        return self.out(found.transpose(1, 2).flatten(2))

    def changed(self, q, k, v):
        return q, k, v

    def attended(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class NormsAllHeads(_Heads):
    """Queries and keys are normed over all heads."""

    def changed(self, q, k, v):
        q, k = (one * (one.square().mean(-1, keepdim=True) + 1e-6).rsqrt() for one in (q, k))
        return q, k, v


class NormsEachHead(_Heads):
    """Queries of each head are normed by a layer that all ranks have."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH // HEADS)

    def attended(self, q, k, v):
        return super().attended(self.norm(q), k, v)


class NormsEachHeadNet(with_attention(NormsEachHead)):
    tensor_parallel_plan = {
        **Net.tensor_parallel_plan,
        "blocks.*.attention.norm": "replicated_with_grad_allreduce",
    }


class NormsEachHeadUnplanned(with_attention(NormsEachHead)):
    pass


class Sinks(_Heads):
    """A number for each head, of which a rank takes as many as it has heads."""

    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.arange(HEADS) / 2.0)

    def attended(self, q, k, v):
        scores = q @ k.transpose(-1, -2) / 2
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -1e9)
        sinks = self.sinks[: q.shape[1], None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sinks.to(scores)], -1).softmax(-1)[..., :-1] @ v


class DropsWhole(_Heads):
    """Drops some of what all ranks have, between layers that are cut."""

    def attended(self, q, k, v):
        gate = functional.dropout(torch.ones(q.shape[-2:], dtype=q.dtype), 0.5, self.training)
        return super().attended(q * gate, k, v)


class OwnSlopes(_Heads):
    """A bias by distance, with a slope for each head, by the number of heads that it sees."""

    def attended(self, q, k, v):
        number, length = q.shape[1], q.shape[2]
        slopes = 2.0 ** (-8 / number * torch.arange(1, number + 1))
        distance = torch.arange(length)[None] - torch.arange(length)[:, None]
        bias = (slopes[:, None, None] * distance).masked_fill(distance > 0, float("-inf"))
        return functional.scaled_dot_product_attention(q, k, v, bias.to(q))


class Smoothed(Step):
    """The loss of a vocabulary that is cut, with smoothed labels."""

    def __init__(self):
        super().__init__(Vocabulary)

    def training_step(self, batch, batch_idx):
        words, targets = batch[0][:, :-1], batch[0][:, 1:]
        logits = self.compute(words)
        return functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), label_smoothing=0.2
        )


class Vocabulary(Net):
    """A head that two ranks can share."""

    tensor_parallel_plan = {**Net.tensor_parallel_plan, "head": "colwise_gather_output"}

    def __init__(self):
        super().__init__()
        self.start.embed, self.head = nn.Embedding(12, WIDTH), nn.Linear(WIDTH, 12)


# a microbatch -----------------------------------------------------------------------------------


class _OfBatch(Step):
    """A step whose loss is computed of logits and targets by `lose`."""

    def __init__(self, make=Net):
        super().__init__(make)

    def training_step(self, batch, batch_idx):
        words, targets = batch[0][:, :-1], batch[0][:, 1:]
        targets = targets.where(targets > 3, -100)
        return self.lose(self.compute(words), targets)

    def entropy(self, logits, targets, **options):
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), **options)


class MeansOfTokens(_OfBatch):
    """A mean over tokens that count, which microbatches have in other numbers."""

    def lose(self, logits, targets):
        return self.entropy(logits, targets)


class WeighsBySamples(_OfBatch):
    """A mean over tokens that count, weighted by the number of samples."""

    def lose(self, logits, targets):
        return {"loss": self.entropy(logits, targets), "weight": len(targets)}


class SumsLosses(_OfBatch):
    """A sum over tokens."""

    def lose(self, logits, targets):
        return self.entropy(logits, targets, reduction="sum")


class DividesTwice(_OfBatch):
    """A mean over tokens that is divided by their number again."""

    def lose(self, logits, targets):
        count = (targets != -100).sum()
        loss = self.entropy(logits, targets, reduction="sum") / count
        return {"loss": loss / count, "weight": int(count)}


class BalancesExperts(_OfBatch):
    """A loss of balance: the product of means of shares, and of how often each is chosen."""

    def lose(self, logits, targets):
        shares = logits.flatten(0, 1).softmax(-1)
        chosen = functional.one_hot(shares.argmax(-1), WORDS).to(shares)
        return logits.square().mean() + (shares.mean(0) * chosen.mean(0)).sum()


class Contrasts(_OfBatch):
    """Each sample against all others of its batch."""

    def lose(self, logits, targets):
        samples = logits.mean(1)
        return functional.cross_entropy(samples @ samples.T, torch.arange(len(samples)))


class RunningCounts(Net):
    """Divides by how often it was called."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def pipeline(self):
        return [self.begin, *self.blocks, self.head]

    def begin(self, words, places):
        self.calls += 1
        return self.start(words, places) / self.calls

    def forward(self, words, places):
        return self.behind_start(self.begin(words, places))


class BatchNormed(Net):
    """A batch norm before the head."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def pipeline(self):
        return [self.start, *self.blocks, self.end]

    def end(self, x):
        return self.head(self.norm(x.transpose(1, 2)).transpose(1, 2))

    def forward(self, words, places):
        x = self.start(words, places)
        for block in self.blocks:
            x = block(x)
        return self.end(x)
