"""Transformers over words, our own, torch's and those of transformers."""

from __future__ import annotations

from typing import Any, ClassVar

import transformers
from torch import Tensor, nn

from models.learner import Learner
from models.losses import (
    masked_word,
    masked_word_of_library,
    next_word,
    next_word_of_library,
    translation,
)
from models.parts import BLOCK_PLAN, HEADS, LENGTH, WIDTH, WORDS, Block, Chain, PlannedChain, Tokens
from models.samples import pairs, text

_LIBRARY_PLAN = {
    **{f"model.layers.*.self_attn.{name}_proj": "colwise" for name in "qkv"},
    "model.layers.*.self_attn.o_proj": "rowwise",
}


def gpt() -> Learner:
    """A GPT."""
    net = PlannedChain(
        [Tokens(WORDS, LENGTH, WIDTH)],
        [Block(WIDTH) for _ in range(6)],
        [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)],
    )
    return Learner(net, next_word, text(LENGTH), 4, plan=BLOCK_PLAN)


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
        transformers.LlamaForCausalLM(config), next_word_of_library, text(LENGTH), 4, plan=plan
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
    return Learner(net, next_word_of_library, text(LENGTH), 4, plan=_LIBRARY_PLAN)


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
    return Learner(TiedChain(), next_word, text(LENGTH), 4, plan=BLOCK_PLAN)


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
    return Learner(net, next_word, text(LENGTH), 2)


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
    return Learner(transformers.T5ForConditionalGeneration(config), translation, pairs(64), 4)


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
    return Learner(net, masked_word_of_library, text(LENGTH), 4, plan=plan)


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
    return Learner(net, masked_word, text(LENGTH), 4, plan=EncoderChain.tensor_parallel_plan)
