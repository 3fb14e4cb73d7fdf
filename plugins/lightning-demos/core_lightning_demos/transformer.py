"""A small Transformer as a language model, and the text that it learns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from core_lightning.module.module import LightningModule
from core_lightning_demos.downloads import fetched

_TEXT = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/train.txt"


class PositionalEncoding(nn.Module):
    """Adds sines to a sequence of features: those of the position that is its length, and drops
    some.
    """

    def __init__(self, dim: int, dropout: float = 0.1, max_len: int = 5000) -> None:
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        self.dim, self.max_len = dim, max_len
        self.pe: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The features, (batch, length, dim), with the encoding."""
        if self.pe is None:
            self.pe = self._encoding(x.device)
        return self.dropout(x + self.pe[:, x.size(1)])  # type: ignore[no-any-return]

    def _encoding(self, device: torch.device) -> Tensor:
        positions = torch.arange(0, self.max_len, dtype=torch.float, device=device).unsqueeze(1)
        steps = torch.arange(0, self.dim, 2, device=device).float()
        rates = torch.exp(steps * (-math.log(10000.0) / self.dim))
        encoding = torch.zeros(self.max_len, self.dim, device=device)
        encoding[:, 0::2] = torch.sin(positions * rates)
        encoding[:, 1::2] = torch.cos(positions * rates)
        return encoding.unsqueeze(0)


class Transformer(nn.Module):
    """torch's Transformer between an embedding and a layer of as many answers as there are
    words.
    """

    def __init__(
        self,
        vocab_size: int = 33278,
        ninp: int = 200,
        nhead: int = 2,
        nhid: int = 200,
        nlayers: int = 2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.pos_encoder = PositionalEncoding(ninp, dropout)
        self.embedding = nn.Embedding(vocab_size, ninp)
        self.transformer = nn.Transformer(
            d_model=ninp, nhead=nhead, num_encoder_layers=nlayers, num_decoder_layers=nlayers,
            dim_feedforward=nhid, dropout=dropout, batch_first=True,
        )  # fmt: skip
        self.decoder = nn.Linear(ninp, vocab_size)
        self.ninp, self.vocab_size = ninp, vocab_size
        self.src_mask: Tensor | None = None

    generate_square_subsequent_mask = staticmethod(nn.Transformer.generate_square_subsequent_mask)

    def forward(self, inputs: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logarithms of probabilities, (batch * length, vocab_size), for words, (batch, length)."""
        length = inputs.shape[1]
        if self.src_mask is None or self.src_mask.size(0) != length:
            self.src_mask = self.generate_square_subsequent_mask(length).to(inputs.device)
        if mask is None:
            mask = self.generate_square_subsequent_mask(length).to(inputs.device)
        source, wanted = (
            self.pos_encoder(self.embedding(each) * math.sqrt(self.ninp))
            for each in (inputs, target)
        )
        decoded = self.decoder(self.transformer(source, wanted, tgt_mask=mask))
        return functional.log_softmax(decoded, dim=-1).view(-1, self.vocab_size)


class Dictionary:
    """Words and their numbers."""

    def __init__(self) -> None:
        self.word2idx: dict[str, int] = {}
        self.idx2word: list[str] = []

    def add_word(self, word: str) -> int:
        """The number of a word, a new one if it hasn't any."""
        if word not in self.word2idx:
            self.word2idx[word] = len(self.idx2word)
            self.idx2word.append(word)
        return self.word2idx[word]

    def __len__(self) -> int:
        return len(self.idx2word)


def tokenize(path: Path) -> tuple[Tensor, Dictionary]:
    """The numbers of all words of a text, an `<eos>` after each line, and the dictionary."""
    dictionary = Dictionary()
    with Path(path).open(encoding="utf8") as lines:
        numbers = [dictionary.add_word(word) for line in lines for word in (*line.split(), "<eos>")]
    return torch.tensor(numbers, dtype=torch.int64), dictionary


class WikiText2(Dataset[tuple["Tensor", "Tensor"]]):
    """Pieces of `block_size` words of WikiText-2, in `data_dir/wikitext-2.txt`, each with the same
    one word later.
    """

    def __init__(
        self, data_dir: Path = Path("./data"), block_size: int = 35, download: bool = True
    ) -> None:
        self.path = Path(data_dir) / "wikitext-2.txt"
        if download:
            self.download(self.path)
        self.data, self.dictionary = tokenize(self.path)
        self.block_size = block_size

    @property
    def vocab_size(self) -> int:
        """Number of different words."""
        return len(self.dictionary)

    def __len__(self) -> int:
        return len(self.data) // self.block_size - 1

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.block_size
        end = start + self.block_size
        return self.data[start:end], self.data[start + 1 : end + 1]

    @staticmethod
    def download(destination: Path) -> None:
        """Fetch the text, unless a file is there."""
        fetched(_TEXT, destination)


class LightningTransformer(LightningModule):
    """The Transformer, which is trained by SGD."""

    def __init__(self, vocab_size: int = 33278) -> None:
        super().__init__()
        self.model = Transformer(vocab_size=vocab_size)

    def forward(self, inputs: Tensor, target: Tensor) -> Tensor:
        """The model's answers."""
        return self.model(inputs, target)  # type: ignore[no-any-return]

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        """The loss."""
        inputs, target = batch
        return functional.nll_loss(self(inputs, target), target.view(-1))

    def configure_optimizers(self) -> Any:
        """SGD."""
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def prepare_data(self) -> None:
        """Fetch the text."""
        WikiText2(download=True)

    def train_dataloader(self) -> Any:
        """One piece a batch."""
        return DataLoader(WikiText2())
