"""GPT-2 in plain torch, as in "Language Models are Unsupervised Multitask Learners" (Radford et
al., 2019).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Config:
    """The size of a model; the vocabulary is rounded up to a multiple of 64, which GPUs multiply
    faster.
    """

    num_layers: int = 12
    num_heads: int = 12
    width: int = 768
    context: int = 1024
    vocabulary: int = 50304


MEDIUM = Config()
"""124M parameters."""
TINY = Config(num_layers=2, num_heads=2, width=32, context=64, vocabulary=128)


class Block(nn.Module):
    """Attention, then two layers; normalized before each."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attend, self.project = (
            nn.Linear(config.width, 3 * config.width),
            nn.Linear(config.width, config.width),
        )
        self.widen, self.narrow = (
            nn.Linear(config.width, 4 * config.width),
            nn.Linear(4 * config.width, config.width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, length, width) to the same."""
        batch, length, width = x.shape
        parts = self.attend(self.norm_1(x)).view(
            batch, length, 3, self.num_heads, width // self.num_heads
        )
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(heads.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.widen(self.norm_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """The model, with its embedding tied to its output."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens, self.places = (
            nn.Embedding(config.vocabulary, config.width),
            nn.Embedding(config.context, config.width),
        )
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.num_layers)))
        self.norm, self.output = (
            nn.LayerNorm(config.width),
            nn.Linear(config.width, config.vocabulary, bias=False),
        )
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        self.output.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of shape (batch, length) to logits of shape (batch, length, vocabulary)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.output(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))

    def loss(self, tokens: Tensor) -> Tensor:
        """The mean loss of predicting each token of shape (batch, length + 1) from those before
        it.
        """
        return functional.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
