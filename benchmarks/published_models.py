"""By hand: published architectures, small, each as a module with the step that its users write.

Needs transformers 5, timm, torchvision and diffusers.
"""

from __future__ import annotations

import re
import sys
import types
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from core import Module

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WORDS, LENGTH, WIDTH, LAYERS, IMAGE, SAMPLES = 64, 16, 32, 4, 32, 32
_SIZES = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2 * LENGTH,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "attention_dropout": 0.0,
}
_EXPERTS = {
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": WIDTH,
}


class Learner(Module):
    """A module of one published model; `step` computes the loss, a mean over samples."""

    def __init__(
        self,
        model: nn.Module,
        step: Callable[[nn.Module, Any], Tensor],
        draw: Callable[[], list[Tensor]],
    ):
        super().__init__()
        self.model, self._step, self.draw = model, step, draw

    def training_step(self, batch: Any) -> Tensor:
        return self._step(self.model, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


# What they are trained on, and how.


def _words() -> list[Tensor]:
    return [torch.randint(3, WORDS, (SAMPLES, LENGTH))]


def _pairs() -> list[Tensor]:
    return [*_words(), *_words()]


def _images(size: int = IMAGE) -> list[Tensor]:
    return [torch.randn(SAMPLES, 3, size, size), torch.randint(0, 10, (SAMPLES,))]


def _captions() -> list[Tensor]:
    return [*_words(), torch.randn(SAMPLES, 3, IMAGE, IMAGE)]


def _speech() -> list[Tensor]:
    return [torch.randn(SAMPLES, 16, 2 * LENGTH), *_words()]


def _noise() -> list[Tensor]:
    return [
        torch.randn(SAMPLES, 3, 16, 16),
        torch.randn(SAMPLES, 3, 16, 16),
        torch.randint(0, 1000, (SAMPLES,)),
    ]


def _places(words: Tensor) -> Tensor:
    return torch.arange(words.size(1), device=words.device).expand_as(words)


def _of_words(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _next_word(model: Any, batch: Any) -> Tensor:
    (words,) = batch
    logits = model(input_ids=words, position_ids=_places(words), use_cache=False).logits
    return _of_words(logits[:, :-1], words[:, 1:])


def _next_word_without_places(model: Any, batch: Any) -> Tensor:
    (words,) = batch
    return _of_words(model(input_ids=words, use_cache=False).logits[:, :-1], words[:, 1:])


def _masked_word(model: Any, batch: Any) -> Tensor:
    (words,) = batch
    seen = words.masked_fill(words % 5 == 0, 1)
    return _of_words(model(input_ids=seen, position_ids=_places(words)).logits, words)


def _translation(model: Any, batch: Any) -> Tensor:
    words, answers = batch
    return _of_words(
        model(input_ids=words, decoder_input_ids=answers, use_cache=False).logits[:, :-1],
        answers[:, 1:],
    )


def _transcription(model: Any, batch: Any) -> Tensor:
    sound, answers = batch
    logits = model(input_features=sound, decoder_input_ids=answers, use_cache=False).logits
    return _of_words(logits[:, :-1], answers[:, 1:])


def _label_of_library(model: Any, batch: Any) -> Tensor:
    images, labels = batch
    return functional.cross_entropy(model(pixel_values=images).logits, labels)


def _label(model: Any, batch: Any) -> Tensor:
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def _caption(model: Any, batch: Any) -> Tensor:
    words, images = batch
    found = model(input_ids=words, pixel_values=images)
    return (1 - (found.text_embeds * found.image_embeds).sum(1)).mean()


def _denoising(model: Any, batch: Any) -> Tensor:
    images, noise, times = batch
    return functional.mse_loss(model(images + noise, times).sample, noise)


def _both_sides(model: Any, batch: Any) -> Tensor:
    words, answers = batch
    return _of_words(model(words, answers)[:, :-1], answers[:, 1:])


def _next_by_lstm(model: Any, batch: Any) -> Tensor:
    (words,) = batch
    return _of_words(model(words)[:, :-1], words[:, 1:])


# Two of one's own.


class Translator(nn.Module):
    """`nn.Transformer` between two embeddings and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 4, 2, 2, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, answers: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(answers.size(1))
        return self.head(
            self.transformer(
                self.source(words), self.target(answers), tgt_mask=mask, tgt_is_causal=True
            )
        )


def _outputs(given: tuple[Tensor, Any]) -> Tensor:
    return given[0]


class Recurrent(nn.Module):
    """Two LSTMs between an embedding and a head."""

    tensor_parallel_plan: Mapping[str, str] = {"up": "colwise", "down": "rowwise"}

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.lower, self.upper = (nn.LSTM(WIDTH, WIDTH, batch_first=True) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WORDS)

    def pipeline(self) -> list[Any]:
        return [
            self.embed,
            self.lower,
            _outputs,
            self.upper,
            _outputs,
            self.up,
            torch.relu,
            self.down,
        ]

    def forward(self, words: Tensor) -> Tensor:
        return self.down(self.up(self.upper(self.lower(self.embed(words))[0])[0]).relu())


# The models. Each function imports its library.


def _causal(name: str, **options: Any) -> Callable[[], Learner]:
    def make() -> Learner:
        import transformers

        config = getattr(transformers, f"{name}Config")(**{**_SIZES, **options})
        config._experts_implementation = "eager"  # torch's grouped product has no float64
        return Learner(getattr(transformers, f"{name}ForCausalLM")(config), _next_word, _words)

    return make


def _bert() -> Learner:
    import transformers

    config = transformers.BertConfig(
        **_SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return Learner(transformers.BertForMaskedLM(config), _masked_word, _words)


def _t5() -> Learner:
    import transformers

    config = transformers.T5Config(
        vocab_size=WORDS,
        d_model=WIDTH,
        d_kv=8,
        d_ff=2 * WIDTH,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
    )
    return Learner(transformers.T5ForConditionalGeneration(config), _translation, _pairs)


def _whisper() -> Learner:
    import transformers

    layers = {
        f"{side}_{what}": n
        for side in ("encoder", "decoder")
        for what, n in (("layers", 2), ("ffn_dim", 64))
    }
    heads = {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
    config = transformers.WhisperConfig(
        vocab_size=WORDS,
        d_model=WIDTH,
        num_mel_bins=16,
        max_source_positions=LENGTH,
        max_target_positions=LENGTH,
        dropout=0.0,
        **layers,
        **heads,
        **{
            f"{name}_token_id": index
            for index, name in enumerate(("pad", "bos", "eos", "decoder_start"))
        },
    )
    return Learner(transformers.WhisperForConditionalGeneration(config), _transcription, _speech)


_VISION = {
    **{name: _SIZES[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")}
}


def _vit() -> Learner:
    import transformers

    config = transformers.ViTConfig(
        **_VISION,
        num_attention_heads=4,
        image_size=IMAGE,
        patch_size=8,
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Learner(transformers.ViTForImageClassification(config), _label_of_library, _images)


def _clip() -> Learner:
    import transformers

    sides = {**_VISION, "num_attention_heads": 4}
    text = {**sides, "vocab_size": WORDS, "max_position_embeddings": LENGTH, "eos_token_id": 2}
    vision = {**sides, "image_size": IMAGE, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH)
    return Learner(transformers.CLIPModel(config), _caption, _captions)


def _mamba() -> Learner:
    import transformers

    config = transformers.MambaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, state_size=4, num_hidden_layers=LAYERS
    )
    return Learner(transformers.MambaForCausalLM(config), _next_word_without_places, _words)


def _gpt2() -> Learner:
    import transformers

    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes = {"n_positions": 2 * LENGTH, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4}
    config = transformers.GPT2Config(vocab_size=WORDS, **sizes, **dropouts)
    return Learner(transformers.GPT2LMHeadModel(config), _next_word, _words)


def _timm(name: str, **options: Any) -> Callable[[], Learner]:
    def make() -> Learner:
        import timm

        return Learner(timm.create_model(name, num_classes=10, **options), _label, _images)

    return make


def _resnet() -> Learner:
    import torchvision

    # In smaller images its last batch norms have one value of each sample: of two samples, rounding
    # decides.
    return Learner(torchvision.models.resnet18(num_classes=10), _label, partial(_images, 2 * IMAGE))


def _unet() -> Learner:
    import diffusers

    model = diffusers.UNet2DModel(
        sample_size=16,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=8,
    )
    return Learner(model, _denoising, _noise)


_DEEPSEEK = {
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}
_LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
}


def _networks(*layers: str, up: str = "fc1", down: str = "fc2") -> dict[str, str]:
    return {
        f"model.{name}.{layer}": word
        for name in layers
        for layer, word in ((up, "colwise"), (down, "rowwise"))
    }


PLANS: dict[str, dict[str, str]] = {
    "OPT": _networks("model.decoder.layers.*"),
    "BERT": _networks("bert.encoder.layer.*", up="intermediate.dense", down="output.dense"),
    "T5": _networks(
        "encoder.block.*.layer.*.DenseReluDense",
        "decoder.block.*.layer.*.DenseReluDense",
        up="wi",
        down="wo",
    ),
    "Whisper": _networks("model.encoder.layers.*", "model.decoder.layers.*"),
    "ViT": _networks("vit.layers.*.mlp"),
    "CLIP": _networks("text_model.encoder.layers.*.mlp", "vision_model.encoder.layers.*.mlp"),
    "nn.Transformer": _networks(
        "transformer.encoder.layers.*",
        "transformer.decoder.layers.*",
        up="linear1",
        down="linear2",
    ),
}
"""`tensor_plan=` for models whose config has none, as the refusal proposes it."""

MODELS: dict[str, Callable[[], Learner]] = {
    "Llama": _causal("Llama"),
    "Llama, tied": _causal("Llama", tie_word_embeddings=True),
    "Qwen 3": _causal("Qwen3", head_dim=8),
    "Mistral": _causal("Mistral", sliding_window=None),
    "Gemma 2": _causal("Gemma2", head_dim=8, tie_word_embeddings=True),
    "Phi 3": _causal("Phi3"),
    "GPT-NeoX": _causal("GPTNeoX", hidden_dropout=0.0),
    "Mixtral": _causal("Mixtral", **_EXPERTS),
    "DeepSeek-V3": _causal("DeepseekV3", **_EXPERTS, **_DEEPSEEK, **_LATENT),
    "Qwen 3 MoE": _causal("Qwen3Moe", head_dim=8, **_EXPERTS),
    "GPT-2": _gpt2,
    "OPT": _causal("OPT", ffn_dim=2 * WIDTH, word_embed_proj_dim=WIDTH, dropout=0.0),
    "BERT": _bert,
    "T5": _t5,
    "Whisper": _whisper,
    "ViT": _vit,
    "CLIP": _clip,
    "Mamba": _mamba,
    "timm's ViT": _timm(
        "vit_tiny_patch16_224",
        img_size=IMAGE,
        patch_size=8,
        embed_dim=WIDTH,
        depth=LAYERS,
        num_heads=4,
    ),
    "timm's ConvNeXt": _timm(
        "convnext_atto", depths=(1, 1, 2, 1), dims=(8, 16, 32, 32), drop_path_rate=0.0
    ),
    "torchvision's ResNet": _resnet,
    "diffusers' U-Net": _unet,
    "nn.Transformer": lambda: Learner(Translator(), _both_sides, _pairs),
    "an LSTM": lambda: Learner(Recurrent(), _next_by_lstm, _words),
}


# Numbers in float64, where the libraries ask for float32 by name too.


class _Doubled(types.ModuleType):
    """torch, by whose `float32` its float64 is meant."""

    def __init__(self) -> None:
        super().__init__("torch")

    def __getattr__(self, name: str) -> Any:
        return torch.float64 if name == "float32" else getattr(torch, name)


def in_float64() -> None:
    """Compute in this process in float64, also where a model of a library names float32; for no
    other purpose.
    """
    torch.set_default_dtype(torch.float64)
    doubled, single = _Doubled(), Tensor.float
    for name, module in list(sys.modules.items()):
        computes = re.match(
            r"transformers\.(models\..*\.modeling_|integrations|loss|modeling_rope)|diffusers\.",
            name,
        )
        if computes and vars(module).get("torch") is torch:
            module.torch = doubled
    Tensor.float = lambda self, **options: (
        self if self.dtype == torch.float64 else single(self, **options)
    )
