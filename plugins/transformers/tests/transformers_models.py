"""Small models of transformers with random weights, and what ranks do with them."""

from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

from core_transformers import from_config, load_pretrained, save_pretrained

_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
_IMAGES = {key: _TEXT[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")}
_IMAGES |= {"image_size": 16, "patch_size": 4}
MODELS = {
    "dense": (transformers.LlamaConfig, _TEXT, transformers.AutoModelForCausalLM),
    "tied": (transformers.LlamaConfig, {**_TEXT, "tie_word_embeddings": True}, transformers.AutoModelForCausalLM),
    "mixture": (transformers.MixtralConfig, {**_TEXT, "num_local_experts": 4}, transformers.AutoModelForCausalLM),
    "experts": (
        transformers.Qwen3MoeConfig,
        {**_TEXT, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        transformers.AutoModelForCausalLM,
    ),
    "conv1d": (
        transformers.GPT2Config,
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64},
        transformers.AutoModelForCausalLM,
    ),
    "windows": (transformers.MistralConfig, {**_TEXT, "sliding_window": 4}, transformers.AutoModelForCausalLM),
    "encoder": (
        transformers.BertConfig,
        {key: _TEXT[key] for key in (*_IMAGES, "vocab_size") if key in _TEXT},
        transformers.AutoModelForMaskedLM,
    ),
    "encoder_decoder": (
        transformers.T5Config,
        {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 64},
        transformers.AutoModelForSeq2SeqLM,
    ),
    "vision": (transformers.ViTConfig, _IMAGES, transformers.AutoModelForImageClassification),
    "vision_language": (
        transformers.LlavaConfig,
        {
            "text_config": transformers.LlamaConfig(**_TEXT),
            "vision_config": transformers.CLIPVisionConfig(**_IMAGES, projection_dim=16),
            "image_token_index": 63,
        },
        transformers.AutoModelForImageTextToText,
    ),
}


def make(name, folder):
    """Write a model as transformers does, in several files."""
    config, options, auto = MODELS[name]
    torch.manual_seed(1)
    auto.from_config(config(**options)).save_pretrained(folder, max_shard_size="20KB")


def tensors(folder):
    """All tensors in a folder's files."""
    return {
        name: value for path in sorted(Path(folder).glob("*.safetensors")) for name, value in load_file(path).items()
    }


def carry(rank, names, source, target):
    """On all ranks. Load each model from `source` and save it in `target`; what this rank has of them, in bytes."""
    held = {}
    for name in names:
        fabric = rank.fabric()
        model = fabric.setup_module(from_config(fabric, source / name, MODELS[name][2]))
        load_pretrained(fabric, model, source / name)
        save_pretrained(fabric, model, target / name, max_shard_bytes=30_000)
        held[name] = sum(
            getattr(value, "_local_tensor", value).nbytes for value in model.parameters() if not value.is_meta
        )
        fabric.teardown()
    return held
