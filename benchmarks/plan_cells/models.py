"""Twenty models, each as a module with its step, its optimizer and its data, as users write them.

State (parameters, gradients, optimizer) takes 64 MiB or more in float32; a step of one process
takes under a second on one core. Every one has repeated blocks of one class, and can be built on
meta. Nothing here imports a planner.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import transformers
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from core import Module

if TYPE_CHECKING:
    from collections.abc import Callable

WORDS, LENGTH, WIDTH, HEADS = 2048, 128, 256, 8
BATCHES_OF_FOUR_RANKS = 6
_ATTENTION = {f"blocks.*.attention.{name}": "colwise" for name in ("query", "key", "value")}
_BLOCK_PLAN = {
    **_ATTENTION,
    "blocks.*.attention.out": "rowwise",
    "blocks.*.up": "colwise",
    "blocks.*.down": "rowwise",
}
_LIBRARY_PLAN = {
    **{f"model.layers.*.self_attn.{name}_proj": "colwise" for name in "qkv"},
    "model.layers.*.self_attn.o_proj": "rowwise",
}
_STYLES: dict[str, type[ColwiseParallel | RowwiseParallel]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
}


class Drawn(Dataset[Any]):
    """Samples that are drawn when they are asked for, each by its own number."""

    def __init__(self, draw: Callable[[torch.Generator], tuple[Tensor, ...]], size: int) -> None:
        self._draw, self._size = draw, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self._draw(torch.Generator().manual_seed(index))


class Learner(Module):
    """A network, the loss of one batch, and where its samples come from.

    Attributes:
        net: the network.
        plan: which layers are cut under `model_parallel`; names in `net`. Other strategies never
            read it.
    """

    def __init__(
        self,
        net: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        draw: Callable[[torch.Generator], tuple[Tensor, ...]],
        batch_size: int,
        *,
        plan: dict[str, str] | None = None,
        momentum: float | None = None,
    ) -> None:
        super().__init__()
        self.net, self._loss, self._draw, self._batch_size = net, loss, draw, batch_size
        self.plan, self._momentum = plan, momentum
        self._is_cut = False

    def configure_model(self) -> None:
        mesh = self.device_mesh
        if self._is_cut or mesh is None or "tensor_parallel" not in (mesh.mesh_dim_names or ()):
            return
        if self.plan is None:
            raise ValueError("a model without a plan")
        parallelize_module(
            self.net,
            mesh["tensor_parallel"],
            {name: _STYLES[word]() for name, word in self.plan.items()},
        )
        self._is_cut = True

    def training_step(self, batch: Any) -> Tensor:
        return self._loss(self.net, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        if self._momentum is not None:
            return torch.optim.SGD(trained, lr=0.01, momentum=self._momentum)
        return torch.optim.AdamW(trained, lr=1e-4)

    def train_dataloader(self) -> DataLoader[Any]:
        size = self._batch_size * 4 * BATCHES_OF_FOUR_RANKS
        return DataLoader(Drawn(self._draw, size), batch_size=self._batch_size)


# Samples and losses.


def _features(width: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda draw: (
        torch.randn(width, generator=draw),
        torch.randint(0, 10, (), generator=draw),
    )


def _images(size: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda draw: (
        torch.randn(3, size, size, generator=draw),
        torch.randint(0, 10, (), generator=draw),
    )


def _text(length: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda draw: (torch.randint(0, WORDS, (length,), generator=draw),)


def _pairs(length: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda draw: (_text(length)(draw)[0], _text(length)(draw)[0])


def _clicks(draw: torch.Generator) -> tuple[Tensor, ...]:
    clicked = torch.randint(0, 2, (), generator=draw).float()
    return torch.randn(16, generator=draw), torch.randint(0, 8192, (8,), generator=draw), clicked


def _places(words: Tensor) -> Tensor:
    return torch.arange(words.size(1), device=words.device).expand_as(words)


def _of_words(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _label(net: Any, batch: Any) -> Tensor:
    inputs, labels = batch
    return functional.cross_entropy(net(inputs), labels)


def _same_again(net: Any, batch: Any) -> Tensor:
    return functional.mse_loss(net(batch[0]), batch[0])


def _next_word(net: Any, batch: Any) -> Tensor:
    (words,) = batch
    return _of_words(net(words, _places(words))[:, :-1], words[:, 1:])


def _next_word_of_recurrent(net: Any, batch: Any) -> Tensor:
    (words,) = batch
    return _of_words(net(words)[:, :-1], words[:, 1:])


def _next_word_of_library(net: Any, batch: Any) -> Tensor:
    (words,) = batch
    logits = net(input_ids=words, position_ids=_places(words), use_cache=False).logits
    return _of_words(logits[:, :-1], words[:, 1:])


def _masked_word(net: Any, batch: Any) -> Tensor:
    (words,) = batch
    return _of_words(net(words.masked_fill(words % 5 == 0, 1), _places(words)), words)


def _masked_word_of_library(net: Any, batch: Any) -> Tensor:
    (words,) = batch
    seen = words.masked_fill(words % 5 == 0, 1)
    return _of_words(net(input_ids=seen, position_ids=_places(words)).logits, words)


def _translation(net: Any, batch: Any) -> Tensor:
    words, answers = batch
    return _of_words(
        net(input_ids=words, decoder_input_ids=answers, use_cache=False).logits[:, :-1],
        answers[:, 1:],
    )


def _click(net: Any, batch: Any) -> Tensor:
    dense, sparse, clicked = batch
    return functional.binary_cross_entropy_with_logits(net(dense, sparse), clicked)


# Parts that several models have.


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

    tensor_parallel_plan = _BLOCK_PLAN


# The models.


class TwoLayers(nn.Module):
    """Up and down, beside what goes past."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.relu(self.up(x)))


class MLP(Chain):
    """Layers in pairs."""

    tensor_parallel_plan: ClassVar[dict[str, str]] = {
        "blocks.*.up": "colwise",
        "blocks.*.down": "rowwise",
    }


def mlp() -> Learner:
    """A multilayer perceptron."""
    net = MLP([nn.Linear(512, 768)], [TwoLayers(768, 1536) for _ in range(3)], [nn.Linear(768, 10)])
    return Learner(net, _label, _features(512), 512, plan=MLP.tensor_parallel_plan)


class ConvBlock(nn.Module):
    """A convolution and a group norm; half as high and wide."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inner, width, 3, padding=1), nn.GroupNorm(8, width)

    def forward(self, x: Tensor) -> Tensor:
        return functional.max_pool2d(functional.relu(self.norm(self.conv(x))), 2)


class Classes(nn.Module):
    """Two layers over all pixels."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(inner, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.relu(self.hidden(x.flatten(1))))


def cnn() -> Learner:
    """A convolutional network."""
    blocks: list[nn.Module] = [ConvBlock(*sizes) for sizes in ((64, 128), (128, 256), (256, 512))]
    net = Chain([nn.Conv2d(3, 64, 3, padding=1)], blocks, [Classes(512 * 16, 512)])
    return Learner(net, _label, _images(32), 16)


class Residual(nn.Module):
    """A ResNet's: two convolutions with batch norms, beside what goes past."""

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(inner, width, 3, stride=stride, padding=1, bias=False),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
        )
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.past = nn.Conv2d(inner, width, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.first(x)))
        return functional.relu(self.norm2(self.second(y)) + self.past(x))


def resnet() -> Learner:
    """A ResNet, with batch norms."""
    sizes = ((48, 48, 1), (48, 96, 2), (96, 192, 2), (192, 384, 2), (384, 416, 1))
    blocks: list[nn.Module] = [Residual(*each) for each in sizes]
    net = Chain([nn.Conv2d(3, 48, 3, padding=1)], blocks, [PooledMap(416)])
    return Learner(net, _label, _images(32), 16, momentum=0.9)


class DoubleConv(nn.Module):
    """A U-Net's: two convolutions with group norms."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(inner, width, 3, padding=1),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.norm1, self.norm2 = nn.GroupNorm(8, width), nn.GroupNorm(8, width)

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(self.norm2(self.second(functional.silu(self.norm1(self.first(x))))))


class UNet(nn.Module):
    """Down and up again, with the maps of the way down beside those of the way up."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.downs = nn.ModuleList(
            DoubleConv(a, b) for a, b in zip((3, *widths[:-2]), widths[:-1], strict=True)
        )
        self.lowest = DoubleConv(widths[-2], widths[-1])
        self.ups = nn.ModuleList(
            DoubleConv(widths[n + 1] + widths[n], widths[n])
            for n in reversed(range(len(widths) - 1))
        )
        self.head = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for down in self.downs:
            x = down(x)
            kept.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.lowest(x)
        for up in self.ups:
            x = up(torch.cat([functional.interpolate(x, scale_factor=2.0), kept.pop()], 1))
        return self.head(x)


def unet() -> Learner:
    """A U-Net."""
    return Learner(UNet((32, 64, 128, 256, 320)), _same_again, _images(32), 24)


def gpt() -> Learner:
    """A GPT."""
    net = PlannedChain(
        [Tokens(WORDS, LENGTH, WIDTH)],
        [Block(WIDTH) for _ in range(6)],
        [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)],
    )
    return Learner(net, _next_word, _text(LENGTH), 4, plan=_BLOCK_PLAN)


def _sizes() -> dict[str, Any]:
    return {
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": LENGTH,
        "tie_word_embeddings": False,
        "pad_token_id": None,
    }


def llama() -> Learner:
    """Llama, of transformers."""
    config = transformers.LlamaConfig(**_sizes(), num_hidden_layers=6, intermediate_size=704)
    layers = {f"model.layers.*.mlp.{name}_proj": "colwise" for name in ("gate", "up")}
    plan = {**_LIBRARY_PLAN, **layers, "model.layers.*.mlp.down_proj": "rowwise"}
    return Learner(
        transformers.LlamaForCausalLM(config), _next_word_of_library, _text(LENGTH), 4, plan=plan
    )


def mixture() -> Learner:
    """Mixtral, of transformers: four experts, of which each word takes two."""
    config = transformers.MixtralConfig(
        **_sizes(),
        num_hidden_layers=3,
        intermediate_size=512,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    config._experts_implementation = "eager"
    net = transformers.MixtralForCausalLM(config)
    return Learner(net, _next_word_of_library, _text(LENGTH), 4, plan=_LIBRARY_PLAN)


def vit() -> Learner:
    """A vision transformer, with dropout."""
    blocks: list[nn.Module] = [Block(WIDTH, is_causal=False, dropout=0.1) for _ in range(6)]
    net = PlannedChain([Patches(64, 8, WIDTH)], blocks, [Pooled(WIDTH)])
    return Learner(net, _label, _images(64), 8, plan=_BLOCK_PLAN)


class Recurrent(nn.Module):
    """One recurrent layer, without its last state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class TwoLayerHead(nn.Module):
    """Logits of words by two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.relu(self.up(x)))


class RecurrentChain(Chain):
    """Recurrent layers; those of the head may be cut."""

    tensor_parallel_plan: ClassVar[dict[str, str]] = {
        "last.part0.up": "colwise",
        "last.part0.down": "rowwise",
    }


def lstm() -> Learner:
    """LSTMs, one upon the other, that guess the next word."""
    blocks: list[nn.Module] = [Recurrent(nn.LSTM(384, 384, batch_first=True)) for _ in range(3)]
    net = RecurrentChain([nn.Embedding(WORDS, 384)], blocks, [TwoLayerHead(384)])
    return Learner(
        net, _next_word_of_recurrent, _text(32), 16, plan=RecurrentChain.tensor_parallel_plan
    )


class TiedChain(PlannedChain):
    """A GPT whose head has the weight of the embedding."""

    def __init__(self) -> None:
        words = 2 * WORDS
        head = nn.Linear(WIDTH, words, bias=False)
        tokens = Tokens(words, LENGTH, WIDTH)
        super().__init__([tokens], [Block(WIDTH) for _ in range(5)], [nn.LayerNorm(WIDTH), head])
        head.weight = tokens.word.weight


def tied() -> Learner:
    """A GPT whose embedding and head share their weight."""
    return Learner(TiedChain(), _next_word, _text(LENGTH), 4, plan=_BLOCK_PLAN)


class Adapted(nn.Module):
    """A frozen layer and a low-rank change of it that is trained: Hu et al., "LoRA", 2021."""

    def __init__(self, inner: int, outer: int, rank: int = 16) -> None:
        super().__init__()
        self.base = nn.Linear(inner, outer).requires_grad_(False)
        self.down, self.up = nn.Linear(inner, rank, bias=False), nn.Linear(rank, outer, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def lora() -> Learner:
    """A GPT that is frozen but for low-rank adapters."""
    width = 512
    first, last = Tokens(WORDS, LENGTH, width), nn.Linear(width, WORDS, bias=False)
    blocks: list[nn.Module] = [Block(width, linear=Adapted) for _ in range(5)]
    for block in blocks:
        for norm in (block.before, block.between):
            norm.requires_grad_(False)
    net = Chain(
        [first.requires_grad_(False)], blocks, [nn.LayerNorm(width), last.requires_grad_(False)]
    )
    return Learner(net, _next_word, _text(LENGTH), 2)


class Normed(nn.Module):
    """A layer and a batch norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(width, width, bias=False), nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.norm(self.layer(x)))


def batchnorm() -> Learner:
    """A multilayer perceptron with a batch norm after each layer."""
    net = Chain([nn.Linear(512, 1024)], [Normed(1024) for _ in range(6)], [nn.Linear(1024, 10)])
    return Learner(net, _label, _features(512), 512, momentum=0.9)


def t5() -> Learner:
    """T5, of transformers: an encoder and a decoder, with dropout."""
    config = transformers.T5Config(
        vocab_size=WORDS,
        d_model=WIDTH,
        d_kv=32,
        d_ff=4 * WIDTH,
        num_layers=3,
        num_heads=HEADS,
        dropout_rate=0.1,
    )
    return Learner(transformers.T5ForConditionalGeneration(config), _translation, _pairs(64), 4)


def bert() -> Learner:
    """BERT, of transformers."""
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=6,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    layer = "bert.encoder.layer.*"
    plan = {f"{layer}.intermediate.dense": "colwise", f"{layer}.output.dense": "rowwise"}
    net = transformers.BertForMaskedLM(config)
    net.tensor_parallel_plan = plan
    return Learner(net, _masked_word_of_library, _text(LENGTH), 4, plan=plan)


class Layer(nn.Module):
    """A layer and what follows it."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inner, outer)

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(self.layer(x))


def autoencoder() -> Learner:
    """An autoencoder of flat images."""
    widths = (3072, 1024, 256, 1024)
    blocks: list[nn.Module] = [Layer(a, b) for a, b in pairwise(widths)]
    net = Chain([], blocks, [nn.Linear(1024, 3072)])
    return Learner(net, _same_again, _features(3072), 512, momentum=0.9)


class LastPosition(nn.Module):
    """Ten logits of the last position."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[:, -1])


def _first_word(net: Any, batch: Any) -> Tensor:
    (words,) = batch
    return functional.cross_entropy(net(words), words[:, 0] % 10)


def gru() -> Learner:
    """GRUs, one upon the other, that sort sequences."""
    blocks: list[nn.Module] = [Recurrent(nn.GRU(448, 448, batch_first=True)) for _ in range(4)]
    net = Chain([nn.Embedding(WORDS, 448)], blocks, [LastPosition(448)])
    return Learner(net, _first_word, _text(32), 16, momentum=0.9)


class EncoderChain(Chain):
    """Layers of torch's own transformer."""

    tensor_parallel_plan: ClassVar[dict[str, str]] = {
        "blocks.*.linear1": "colwise",
        "blocks.*.linear2": "rowwise",
    }


def encoder() -> Learner:
    """An encoder of torch's own layers."""
    blocks: list[nn.Module] = [
        nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        for _ in range(6)
    ]
    net = EncoderChain([Tokens(WORDS, LENGTH, WIDTH)], blocks, [nn.Linear(WIDTH, WORDS)])
    return Learner(net, _masked_word, _text(LENGTH), 4, plan=EncoderChain.tensor_parallel_plan)


class Recommender(nn.Module):
    """Tables of embeddings, whose products go with dense features into layers: Naumov et al.,
    "DLRM", 2019.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(8192, width) for _ in range(8))
        self.bottom = nn.ModuleDict({"in": nn.Linear(16, 256), "out": nn.Linear(256, width)})
        self.top = nn.ModuleDict({"in": nn.Linear(width + 36, 512), "out": nn.Linear(512, 1)})

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom["out"](functional.relu(self.bottom["in"](dense)))
        found = torch.stack([x, *(table(sparse[:, n]) for n, table in enumerate(self.tables))], 1)
        upper = torch.triu_indices(9, 9, 1, device=x.device)
        products = torch.bmm(found, found.transpose(1, 2))[:, upper[0], upper[1]]
        return self.top["out"](
            functional.relu(self.top["in"](torch.cat([x, products], 1)))
        ).squeeze(1)


def recommender() -> Learner:
    """A recommender, most of whose parameters are embeddings with dense gradients."""
    return Learner(Recommender(), _click, _clicks, 2048)


class ConvNeXtBlock(nn.Module):
    """Liu et al., "A ConvNet for the 2020s": a wide depthwise convolution, a norm, and two layers
    over channels.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + self.down(functional.gelu(self.up(y))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Two stages of blocks."""

    def __init__(self, narrow: int, wide: int) -> None:
        super().__init__()
        self.stem, self.lower = (
            nn.Conv2d(3, narrow, 4, stride=4),
            nn.ModuleList(ConvNeXtBlock(narrow) for _ in range(2)),
        )
        self.down = nn.Conv2d(narrow, wide, 2, stride=2)
        self.upper, self.head = (
            nn.ModuleList(ConvNeXtBlock(wide) for _ in range(4)),
            PooledMap(wide),
        )

    def pipeline(self) -> list[Any]:
        return [self.stem, *self.lower, self.down, *self.upper, self.head]

    def forward(self, x: Tensor) -> Tensor:
        for part in self.pipeline():
            x = part(x)
        return x


def convnext() -> Learner:
    """A ConvNeXt."""
    return Learner(ConvNeXt(128, 384), _label, _images(64), 8)


class MixerBlock(nn.Module):
    """Tolstikhin et al., "MLP-Mixer": layers over positions, then over channels."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_positions = TwoLayers(positions, 4 * positions)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_positions(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Mixer(Chain):
    """Blocks of which the layers over channels may be cut."""

    tensor_parallel_plan: ClassVar[dict[str, str]] = {
        "blocks.*.up": "colwise",
        "blocks.*.down": "rowwise",
    }


def mixer() -> Learner:
    """An MLP-Mixer."""
    net = Mixer([Patches(64, 8, 384)], [MixerBlock(64, 384) for _ in range(4)], [Pooled(384)])
    return Learner(net, _label, _images(64), 8, plan=Mixer.tensor_parallel_plan)


_ALL: tuple[Callable[[], Learner], ...] = (
    mlp,
    cnn,
    resnet,
    unet,
    gpt,
    llama,
    mixture,
    vit,
    lstm,
    tied,
    lora,
    batchnorm,
    t5,
    bert,
    autoencoder,
    gru,
    encoder,
    recommender,
    convnext,
    mixer,
)
MODELS: dict[str, Callable[[], Learner]] = {make.__name__: make for make in _ALL}
"""Makes each model; seed torch before."""
