"""Small models of transformers with random weights, and what ranks do with them."""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

from core import Module
from core_transformers import (
    LoadPretrained,
    PretrainedWeights,
    SavePretrained,
    from_config,
    load_pretrained,
    save_pretrained,
)

CAUSAL = transformers.AutoModelForCausalLM
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
_IMAGES = {
    key: TEXT[key]
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
}
_IMAGES |= {"image_size": 16, "patch_size": 4}
MODELS = {
    "dense": (transformers.LlamaConfig, TEXT, transformers.AutoModelForCausalLM),
    "tied": (
        transformers.LlamaConfig,
        {**TEXT, "tie_word_embeddings": True},
        transformers.AutoModelForCausalLM,
    ),
    "mixture": (
        transformers.MixtralConfig,
        {**TEXT, "num_local_experts": 4},
        transformers.AutoModelForCausalLM,
    ),
    "experts": (
        transformers.Qwen3MoeConfig,
        {
            **TEXT,
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
        transformers.AutoModelForCausalLM,
    ),
    "conv1d": (
        transformers.GPT2Config,
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64},
        transformers.AutoModelForCausalLM,
    ),
    "windows": (
        transformers.MistralConfig,
        {**TEXT, "sliding_window": 4},
        transformers.AutoModelForCausalLM,
    ),
    "encoder": (
        transformers.BertConfig,
        {key: TEXT[key] for key in (*_IMAGES, "vocab_size") if key in TEXT},
        transformers.AutoModelForMaskedLM,
    ),
    "encoder_decoder": (
        transformers.T5Config,
        {
            "d_model": 32,
            "d_ff": 64,
            "d_kv": 8,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": 64,
            "decoder_start_token_id": 0,
        },
        transformers.AutoModelForSeq2SeqLM,
    ),
    "vision": (transformers.ViTConfig, _IMAGES, transformers.AutoModelForImageClassification),
    "vision_language": (
        transformers.LlavaConfig,
        {
            "text_config": transformers.LlamaConfig(**TEXT),
            "vision_config": transformers.CLIPVisionConfig(**_IMAGES, projection_dim=16),
            "image_token_index": 63,
        },
        transformers.AutoModelForImageTextToText,
    ),
}


def make(name, folder):
    """Write a model as transformers does, in several files."""
    kind, options, auto = MODELS[name]
    config = kind(**options)
    for part in (
        config,
        *(
            each
            for each in vars(config).values()
            if isinstance(each, transformers.PreTrainedConfig)
        ),
    ):
        for key in [
            key for key in vars(part) if "drop" in key and isinstance(getattr(part, key), float)
        ]:
            setattr(part, key, 0.0)  # each strategy draws masks of its own
    torch.manual_seed(1)
    auto.from_config(config).save_pretrained(folder, max_shard_size="20KB")


def tensors(folder):
    """All tensors in a folder's files."""
    return {
        name: value
        for path in sorted(Path(folder).glob("*.safetensors"))
        for name, value in load_file(path).items()
    }


def carry(rank, names, source, target):
    """On all ranks. Load each model from `source`, save it in `target`, and stream it, which gives
    the same tensors.

    Returns what this rank has of each, in bytes.
    """
    held = {}
    for name in names:
        fabric = rank.fabric()
        model = fabric.setup_module(from_config(fabric, source / name, MODELS[name][2]))
        load_pretrained(fabric, model, source / name)
        save_pretrained(fabric, model, target / name, max_shard_bytes=30_000)
        stream = PretrainedWeights(fabric, model)
        streamed, saved = {each: tensor.clone() for each, tensor in stream}, tensors(source / name)
        assert streamed.keys() == saved.keys() == {each.name for each in stream.metadata()}
        assert not [each for each in saved if not torch.equal(streamed[each], saved[each])]
        held[name] = sum(
            getattr(value, "_local_tensor", value).nbytes
            for value in model.parameters()
            if not value.is_meta
        )
        fabric.teardown()
    return held


def assert_alike(source, target, name):
    """The same names and numbers, the class that they are of, and who may read them."""
    assert oct((target / name).stat().st_mode) == oct((source / name).stat().st_mode)
    own, expected = tensors(target / name), tensors(source / name)
    assert own.keys() == expected.keys()
    assert not [each for each in own if not torch.equal(own[each], expected[each])]
    found, whole = (
        MODELS[name][2].from_pretrained(folder / name).state_dict() for folder in (target, source)
    )
    assert not [each for each in whole if not torch.equal(found[each], whole[each])]
    first, second = (
        json.loads((folder / name / "config.json").read_text()) for folder in (target, source)
    )
    assert not [
        key for key in ("architectures", "model_type", "dtype") if first[key] != second[key]
    ]


class Tuned(Module):
    """Trains a model of transformers that is made where the strategy wants it."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def configure_model(self):
        self.model = from_config(self.trainer, self.folder, CAUSAL)

    def training_step(self, batch):
        return self.model(input_ids=batch, labels=batch).loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def batches(shares, steps):
    """A loader of this many steps, each of 8 samples over all shares."""
    return torch.utils.data.DataLoader(
        torch.arange(32 * steps).reshape(-1, 4) % 63, batch_size=8 // shares
    )


def tune(rank, folder, name):
    """On all ranks. Train the model in `first`, save it in `folder` as `saved/name`, and
    `last.ckpt`.
    """
    first = folder / "first"
    callbacks = [LoadPretrained(first), SavePretrained(folder / "saved" / name)]
    trainer = rank.trainer(max_steps=2, callbacks=callbacks)
    trainer.fit(Tuned(first), batches(rank.backend.num_processes, 2))
    trainer.save_checkpoint(folder / "last.ckpt")
