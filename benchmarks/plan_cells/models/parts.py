"""Parts that several models have, and which of their layers may be cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

WORDS, LENGTH, WIDTH, HEADS = 2048, 128, 256, 8
_ATTENTION = {f"blocks.*.attention.{name}": "colwise" for name in ("query", "key", "value")}
BLOCK_PLAN = {
    **_ATTENTION,
    "blocks.*.attention.out": "rowwise",
    "blocks.*.up": "colwise",
    "blocks.*.down": "rowwise",
}


class Attention(nn.Module):
    """Self-attention of `heads` heads. (samples, length, width) to the same shape."""

    def __init__(
        self, width: int, heads: int, *, is_causal: bool, linear: Callable[[int, int], nn.Module]
    ) -> None:
        super().__init__()
        self.head_dim, self.is_causal = width // heads, is_causal
        self.query, self.key, self.value, self.out = (linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        samples, length, _ = x.shape
        heads = [
            layer(x).view(samples, length, -1, self.head_dim).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        y = functional.scaled_dot_product_attention(*heads, is_causal=self.is_causal)
        return self.out(y.transpose(1, 2).reshape(samples, length, -1))


class Block(nn.Module):
    """A transformer's: attention and two layers, each after a norm, beside what goes past them."""

    def __init__(
        self,
        width: int,
        heads: int = HEADS,
        *,
        is_causal: bool = True,
        dropout: float = 0.0,
        linear: Callable[[int, int], nn.Module] = nn.Linear,
    ) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, is_causal=is_causal, linear=linear)
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.before(x)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.between(x)))))


class Tokens(nn.Module):
    """Embeddings of words and of their positions, added up."""

    def __init__(self, words: int, length: int, width: int) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(words, width), nn.Embedding(length, width)

    def forward(self, words: Tensor, positions: Tensor) -> Tensor:
        return self.word(words) + self.position(positions)


class Pooled(nn.Module):
    """Ten logits of the mean over positions. (samples, positions, width) to (samples, 10)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x).mean(1))


class PooledMap(nn.Module):
    """Ten logits of the mean over pixels. (samples, width, height, width) to (samples, 10)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.mean((2, 3)))


class Patches(nn.Module):
    """Images in patches, with a learned position. (samples, 3, side, side) to (samples, positions,
    width).
    """

    def __init__(self, side: int, patch: int, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, stride=patch)
        self.position = nn.Embedding((side // patch) ** 2, width)

    def forward(self, images: Tensor) -> Tensor:
        return self.cut(images).flatten(2).transpose(1, 2) + self.position.weight


class TwoLayers(nn.Module):
    """Up and down, beside what goes past."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.relu(self.up(x)))


class Chain(nn.Module):
    """Parts that are applied one after the other, the blocks in a list of their own."""

    def __init__(
        self, first: list[nn.Module], blocks: list[nn.Module], last: list[nn.Module]
    ) -> None:
        super().__init__()
        self.first, self.last = nn.ModuleDict(), nn.ModuleDict()
        for number, part in enumerate(first):
            self.first[f"part{number}"] = part
        self.blocks = nn.ModuleList(blocks)
        for number, part in enumerate(last):
            self.last[f"part{number}"] = part

    def pipeline(self) -> list[Any]:
        return [*self.first.values(), *self.blocks, *self.last.values()]

    def forward(self, *inputs: Tensor) -> Any:
        parts = self.pipeline()
        x = parts[0](*inputs)
        for part in parts[1:]:
            x = part(x)
        return x


class PlannedChain(Chain):
    """A chain whose blocks may be cut."""

    tensor_parallel_plan = BLOCK_PLAN
