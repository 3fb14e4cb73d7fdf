"""The formats in which models are trained are those in which transformers loads them."""

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from test_pretrained import pipeline, tensor
from transformers_models import CAUSAL, TEXT, Tuned, batches

from core import Callback
from core_testing.ranks import Backend
from core_transformers import LoadPretrained, PretrainedWeights, SavePretrained

pytestmark = pytest.mark.slow
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
ROUTED = {
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
SIZES = {
    **TEXT,
    **LATENT,
    **ROUTED,
    "moe_intermediate_size": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}


def formats(model):
    return {name: one.dtype for name, one in (*model.named_parameters(), *model.named_buffers())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a model whose routers are in float32, and whose frequencies are."""
    folder = tmp_path_factory.mktemp("model") / "first"
    torch.manual_seed(1)
    CAUSAL.from_config(transformers.DeepseekV3Config(**SIZES)).save_pretrained(folder)
    return folder


# torch's, of first values that aren't kept
@pytest.mark.filterwarnings("ignore:DTensor random operators")
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
def test_what_transformers_keeps_in_float32_is_trained_streamed_and_saved_so(
    folder, tmp_path, strategy, precision
):
    class Looks(Callback):
        """The formats in which tensors are trained, and streamed in 16 bits; and the
        frequencies.
        """

        def on_train_end(self, trainer, module):
            self.trained, self.frequencies = (
                formats(module.model),
                module.model.model.rotary_emb.inv_freq,
            )
            streamed = list(PretrainedWeights(trainer, module, dtype=torch.bfloat16))
            self.streamed = {name: tensor.dtype for name, tensor in streamed}

    def train(rank, folder, target):
        looks = Looks()
        callbacks = [LoadPretrained(folder), SavePretrained(target, dtype=torch.bfloat16), looks]
        trainer = rank.trainer(max_steps=1, callbacks=callbacks)
        trainer.fit(Tuned(folder), batches(1, 1))
        return looks.trained, looks.streamed, looks.frequencies

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
