"""A small LSTM as a language model."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Sampler

from core_lightning.module.module import LightningModule
from core_lightning_demos.transformer import WikiText2

Hidden = tuple[Tensor, Tensor]


class SimpleLSTM(nn.Module):
    """An LSTM between an embedding and a layer of as many answers as there are words."""

    def __init__(
        self,
        vocab_size: int = 33278,
        ninp: int = 512,
        nhid: int = 512,
        nlayers: int = 4,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.vocab_size, self.nlayers, self.nhid = vocab_size, nlayers, nhid
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocab_size, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout, batch_first=True)
        self.decoder = nn.Linear(nhid, vocab_size)
        self.init_weights()

    def init_weights(self) -> None:
        """Draw the first and the last weights from -0.1 to 0.1."""
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, words: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """Logarithms of probabilities, (batch * length, vocab_size), and the new state."""
        output, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        decoded = self.decoder(self.drop(output)).view(-1, self.vocab_size)
        return functional.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, batch_size: int) -> Hidden:
        """A state of zeros."""
        shape = (self.nlayers, batch_size, self.nhid)
        weight = next(self.parameters())
        return weight.new_zeros(shape), weight.new_zeros(shape)


class SequenceSampler(Sampler[list[int]]):
    """Batches whose rows go on in the next batch."""

    def __init__(self, dataset: Sized, batch_size: int) -> None:
        self.dataset, self.batch_size = dataset, batch_size
        self.chunk_size = len(dataset) // batch_size

    def __iter__(self) -> Iterator[list[int]]:
        whole = self.chunk_size * self.batch_size
        return (list(range(start, whole, self.chunk_size)) for start in range(self.chunk_size))

    def __len__(self) -> int:
        return self.chunk_size


class LightningLSTM(LightningModule):
    """The LSTM, whose state goes from batch to batch of an epoch."""

    def __init__(self, vocab_size: int = 33278) -> None:
        super().__init__()
        self.model = SimpleLSTM(vocab_size=vocab_size)
        self.hidden: Hidden | None = None

    def on_train_epoch_end(self) -> None:
        """Forget the state."""
        self.hidden = None

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        """The loss."""
        words, target = batch
        hidden = self.model.init_hidden(words.size(0)) if self.hidden is None else self.hidden
        output, self.hidden = self.model(words, (hidden[0].detach(), hidden[1].detach()))
        loss = functional.nll_loss(output, target.view(-1))
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def prepare_data(self) -> None:
        """Fetch the text."""
        WikiText2(download=True)

    def train_dataloader(self) -> Any:
        """Twenty rows a batch."""
        dataset = WikiText2()
        return DataLoader(dataset, batch_sampler=SequenceSampler(dataset, batch_size=20))

    def configure_optimizers(self) -> Any:
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=20.0)
