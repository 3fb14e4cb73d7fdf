"""Documents packed in a row are trained as each alone, or refused."""

import re

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from transformers_models import CAUSAL, TEXT

from core import Fabric, ModuleError
from core_transformers import from_config

WORDS = torch.randint(3, 60, (2, 2, 6), generator=torch.Generator().manual_seed(2))
ROW, PLACES = torch.cat([*WORDS], 1), torch.arange(6).repeat(2).expand(2, -1)
ONES = torch.ones_like(ROW)
APART = torch.block_diag(*[torch.ones(6, 6)] * 2).tril().bool().expand(2, 1, -1, -1)
KINDS = {
    "attention": transformers.LlamaConfig(**TEXT),
    "alike": transformers.OPTConfig(**TEXT, ffn_dim=32, word_embed_proj_dim=32, dropout=0.0),
    "recurrent": transformers.Qwen3NextConfig(
        **{**TEXT, "num_hidden_layers": 2},
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
    ),
}


def make(name="attention"):
    torch.manual_seed(0)
    return from_config(Fabric(accelerator="cpu"), KINDS[name], CAUSAL)


@pytest.mark.parametrize("trains", [True, False])
def test_a_row_of_documents_is_as_each_alone(trains):
    model = make().train(trains)
    for given in ({}, {"use_cache": False}, {"attention_mask": APART, "use_cache": None}):
        row = model(input_ids=ROW, position_ids=PLACES, **given)
        alone = [model(input_ids=words).logits for words in WORDS]
        torch.testing.assert_close(row.logits, torch.cat(alone, 1))


def test_the_cache_is_off_in_training_alone():
    model = make()
    assert model.train()(input_ids=ROW).past_key_values is None
    assert model.train()(ROW, use_cache=True).past_key_values is not None
    assert model.eval()(input_ids=ROW).past_key_values is not None
    assert model.config.use_cache
    left = torch.cat([torch.zeros_like(ONES[:, :2]), ONES[:, 2:]], 1)  # padded, as generate has it
    model.train()(
        input_ids=ROW,
        attention_mask=left,
        position_ids=(left.cumsum(1) - 1).masked_fill(left == 0, 1),
    )


@pytest.mark.parametrize(
    ("name", "given", "reason"),
    [
        (
            "attention",
            {"attention_mask": ONES},
            "beside an attention_mask of two dimensions transformers doesn't",
        ),
        ("attention", {"use_cache": True}, "beside a cache transformers doesn't look"),
        (
            "attention",
            {"past_key_values": transformers.DynamicCache()},
            "beside a cache transformers doesn't look",
        ),
        ("alike", {}, "it doesn't look at them"),
        (
            "recurrent",
            {"attention_mask": APART},
            "its layers of the kind 'linear_attention' don't look at them",
        ),
    ],
)
@pytest.mark.parametrize("trains", [True, False])
def test_positions_that_nothing_looks_at_are_an_error(name, given, reason, trains):
    looks = transformers.masking_utils.find_packed_sequence_indices
    with pytest.raises(
        ModuleError, match=rf"begin again within a row.*{re.escape(reason)}.*would see those before"
    ):
        make(name).train(trains)(input_ids=ROW, position_ids=PLACES, **given)
    assert transformers.masking_utils.find_packed_sequence_indices is looks
