"""The formats in which models are trained are those in which transformers loads them."""

import re

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from test_pretrained import pipeline, tensor
from transformers_models import CAUSAL, TEXT, Tuned, batches

from core import Callback, Fabric
from core_testing.ranks import Backend
from core_transformers import LoadPretrained, PretrainedWeights, SavePretrained, from_config, load_pretrained

pytestmark = pytest.mark.slow
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
ROUTED = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
SIZES = {
    **TEXT,
    **LATENT,
    **ROUTED,
    "moe_intermediate_size": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}


_OTHER_NAMES = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "d_model": 32, "n_heads": 4, "n_layers": 2}
_EXPERTS = {"num_local_experts": 4, "num_experts": 4, "moe_num_experts": 4, "shared_expert_intermediate_size": 16}
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ANY = {**TEXT, **ROUTED, **LATENT, **_OTHER_NAMES, **_EXPERTS, **_IDS, "moe_intermediate_size": 16, "head_dim": 8}
ANY |= {"max_position_embeddings": 64, "ffn_dim": 64, "d_ff": 64, "state_size": 8, "rotary_dim": 8, "moe_topk": 2}
KINDS = re.findall(
    r"\w+",
    """
    beam deepseek_v4 ernie4_5_moe exaone_moe flint glm4_moe gpt_oss hy_v3 hy_v4 kolibri1 mimo_v2_flash rwkv sarvam_moe
    solar_open olmo_hybrid llama llama4_text gemma3_text gemma4_unified_text cohere2 falcon_mamba mamba mixtral mistral
    qwen2 qwen3_moe phi3 phimoe lfm2 minimax gpt2 gptj bert roformer opt bloom xlm stablelm olmoe granitemoe
    """,
)
PLANNED = re.findall(
    r"\w+", "glm4_moe exaone_moe hy_v3 solar_open llama qwen2 qwen3_moe mistral mixtral phi3 olmoe ernie4_5_moe"
)


def make_any(kind, folder):
    torch.manual_seed(1)
    CAUSAL.from_config(transformers.CONFIG_MAPPING[kind](**ANY)).save_pretrained(folder)


def formats(model):
    return {name: one.dtype for name, one in (*model.named_parameters(), *model.named_buffers())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a model whose routers are in float32, and whose frequencies are."""
    folder = tmp_path_factory.mktemp("model") / "first"
    torch.manual_seed(1)
    CAUSAL.from_config(transformers.DeepseekV3Config(**SIZES)).save_pretrained(folder)
    return folder


class Looks(Callback):
    """The formats in which tensors are trained, and streamed in 16 bits; and the frequencies."""

    def on_train_end(self, trainer, module):
        self.trained, self.frequencies = formats(module.model), module.model.model.rotary_emb.inv_freq
        streamed = list(PretrainedWeights(trainer, module, dtype=torch.bfloat16))
        self.streamed = {name: tensor.dtype for name, tensor in streamed}


def train(rank, folder, target):
    looks = Looks()
    callbacks = [LoadPretrained(folder), SavePretrained(target, dtype=torch.bfloat16), looks]
    trainer = rank.trainer(max_steps=1, callbacks=callbacks)
    trainer.fit(Tuned(folder), batches(1, 1))
    return looks.trained, looks.streamed, looks.frequencies


@pytest.mark.filterwarnings("ignore:DTensor random operators")  # torch's, of first values that aren't kept
@pytest.mark.parametrize(
    ("strategy", "precision"),
    [
        (lambda: "single_device", "bf16-true"),
        (lambda: "ddp_find_unused_parameters_true", "bf16-true"),
        (lambda: "fsdp", "bf16-true"),
        (lambda: "fsdp", "bf16-mixed"),
        (tensor, "bf16-true"),
        (pipeline, "bf16-true"),
    ],
    ids=["single_device", "ddp", "fsdp", "fsdp-mixed", "tensor", "pipeline"],
)
def test_what_transformers_keeps_in_float32_is_trained_streamed_and_saved_so(folder, tmp_path, strategy, precision):
    expected = CAUSAL.from_pretrained(folder, dtype=torch.bfloat16)
    num_processes = 1 if strategy() == "single_device" else 2
    backend = Backend(strategy, num_processes=num_processes, options={"precision": precision})
    for trained, streamed, frequencies in backend.run(train, folder, tmp_path / "saved"):
        if precision == "bf16-true":
            assert trained == formats(expected)
        assert torch.equal(frequencies, expected.model.rotary_emb.inv_freq)
        kept = {name for name, dtype in streamed.items() if dtype == torch.float32}
        gate = "model.layers.1.mlp.gate"
        assert kept == {f"{gate}.weight", f"{gate}.e_score_correction_bias"}
    assert formats(CAUSAL.from_pretrained(tmp_path / "saved", dtype="auto")) == formats(expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
@pytest.mark.parametrize("kind", KINDS)
def test_formats_are_those_of_transformers(kind, precision, tmp_path):
    make_any(kind, tmp_path / "first")
    fabric = Fabric(accelerator="cpu", precision=precision)
    dtype = {"bf16-true": torch.bfloat16, "16-true": torch.float16}[precision]
    expected = CAUSAL.from_pretrained(tmp_path / "first", dtype=dtype)
    loaded = CAUSAL.from_pretrained(tmp_path / "first", dtype=dtype)
    fabric.setup_module(loaded)
    made = from_config(fabric, tmp_path / "first", CAUSAL)
    load_pretrained(fabric, fabric.setup_module(made), tmp_path / "first")
    for model in (loaded, made):
        assert formats(model) == formats(expected)
        for name, value in expected.state_dict().items():
            assert torch.equal(model.state_dict()[name], value), name
    fabric.teardown()


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")  # of a model's own
@pytest.mark.parametrize("strategy", [lambda: "fsdp", tensor, pipeline], ids=["fsdp", "tensor", "pipeline"])
@pytest.mark.parametrize("kind", PLANNED)
def test_formats_of_ranks_are_those_of_transformers(kind, strategy, tmp_path):
    make_any(kind, tmp_path / "first")
    expected = formats(CAUSAL.from_pretrained(tmp_path / "first", dtype=torch.bfloat16))
    backend = Backend(strategy, num_processes=2, options={"precision": "bf16-true"})
    for found in backend.run(look, tmp_path / "first"):
        assert found == expected


def look(rank, folder):
    """On all ranks. The formats of a model that was set up and filled."""
    fabric = rank.fabric()
    model = fabric.setup_module(from_config(fabric, folder, CAUSAL))
    load_pretrained(fabric, model, folder)
    found = formats(model.module)
    fabric.teardown()
    return found
