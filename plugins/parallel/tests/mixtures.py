"""Small mixtures of experts for the tests of expert parallelism."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from axes import WIDTH, WORDS, Block, Net, Step
from torch import Tensor, nn
from torch.nn import functional

from core_parallel import ExpertList

NUM_EXPERTS = 4


class Stacked(nn.Module):
    """Experts with 3-D weights, as they stand in transformers' models."""

    def __init__(self, num_experts: int = NUM_EXPERTS) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.up = nn.Parameter(torch.randn(num_experts, 2 * WIDTH, WIDTH) / 4)
        self.down = nn.Parameter(torch.randn(num_experts, WIDTH, 2 * WIDTH) / 4)

    def forward(self, tokens: Tensor, numbers: Tensor, weights: Tensor) -> Tensor:
        result = torch.zeros_like(tokens)
        for number in range(self.num_experts):
            place, choice = torch.where(numbers == number)
            hidden = functional.gelu(tokens[place] @ self.up[number].T) @ self.down[number].T
            result = result.index_add(0, place, (hidden * weights[place, choice, None]).to(result.dtype))
        return result


def one_expert() -> nn.Module:
    """One of a list."""
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


class Mixture(Block):
    """A block whose network is a mixture."""

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        del self.up, self.down
        self.gate, self.experts = nn.Linear(WIDTH, experts.num_experts, bias=False), experts

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        tokens = self.norm(x).flatten(0, 1)
        weights, numbers = self.gate(tokens).softmax(-1).topk(2)
        return x + self.experts(tokens, numbers, weights).view_as(x)


class MixtureNet(Net):
    """A language model of two blocks of experts: with stacked weights, and made of a list."""

    tensor_parallel_plan = None

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Mixture(Stacked()), Mixture(ExpertList(one_expert() for _ in range(NUM_EXPERTS)))])


class PlannedMixtures(MixtureNet):
    """The same with a plan for a tensor group."""

    tensor_parallel_plan = {
        **{f"blocks.*.attention.{name}": "colwise" for name in ("query", "key", "value")},
        "blocks.*.attention.out": "rowwise",
        "blocks.*.experts.up": "packed_colwise",  # as transformers has it beside the next one
        "blocks.*.experts": "moe_tp_experts",
    }


class MixtureStep(Step):
    """The step of the other dimensions with experts."""

    def __init__(self, make: Any = MixtureNet) -> None:
        super().__init__(make)


class Capacity(MixtureNet):
    """Tokens past an expert's capacity go nowhere: their expert has a number past the last."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([CapacityMixture(Stacked()) for _ in range(2)])


class CapacityMixture(Mixture):
    """Every third choice is left out."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(0, 1)
        weights, numbers = self.gate(tokens).softmax(-1).topk(2)
        # By the token itself and not by its place, so that it is the same one on every rank.
        numbers = numbers.where(tokens[:, :2] < 0.8, NUM_EXPERTS)
        return x + self.experts(tokens, numbers, weights).view_as(x)


def transformers_model(name: str) -> Any:
    """A small model of that library."""
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    if name == "DeepseekV2":
        sizes |= {"n_routed_experts": NUM_EXPERTS, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
        sizes |= {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
        sizes |= {"num_key_value_heads": 4}  # which are made of one latent
    experts = {"num_experts": NUM_EXPERTS, "num_local_experts": NUM_EXPERTS, "moe_intermediate_size": 24}
    kind = getattr(transformers, f"{name}Config")
    config = kind(vocab_size=WORDS, head_dim=4, num_experts_per_tok=2, **sizes, **experts)
    config._experts_implementation = "eager"  # torch's grouped product has no float64
    return getattr(transformers, f"{name}ForCausalLM")(config)


class OfTransformers(Step):
    """The step with such a model."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda: transformers_model(name))

    def compute(self, words: Tensor) -> Tensor:
        return self.net(input_ids=words, use_cache=False).logits


class Odd(MixtureNet):
    """Three experts."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Mixture(Stacked(3))])


class OtherNames(MixtureNet):
    """Its plan names nothing."""

    expert_parallel_plan = ("layers.*.experts",)


class Whole(MixtureNet):
    """Its plan names a block, which has more than experts."""

    expert_parallel_plan = ("blocks.0",)


class Unknown(MixtureNet):
    """Its plan has a word of no meaning."""

    expert_parallel_plan = {"blocks.*.experts": "spread"}  # as users write it


class Tied(MixtureNet):
    """Two blocks share a weight of their experts."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Mixture(Stacked()) for _ in range(2))
        self.blocks[1].experts.up = self.blocks[0].experts.up


class _Normalizing(Stacked):
    def forward(self, tokens: Tensor, numbers: Tensor, weights: Tensor) -> Tensor:
        return super().forward(tokens, numbers, weights / weights.sum(1, keepdim=True))


class Normalizing(MixtureNet):
    """Its experts look at all choices of a token."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Mixture(_Normalizing())])


class _Sequences(Mixture):
    def forward(self, x: Tensor) -> Tensor:
        weights, numbers = self.gate(x).softmax(-1).topk(2)
        return x + self.experts(x, numbers, weights)


class Sequences(MixtureNet):
    """Its experts are called with sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_Sequences(Stacked())])


class OfHalf(MixtureNet):
    """One parameter belongs to all experts, and the plan names the others."""

    expert_parallel_plan = ("blocks.*.experts", "blocks.*.experts.up", "blocks.*.experts.down")

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Mixture(_Scaled())])


class _Scaled(Stacked):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, tokens: Tensor, numbers: Tensor, weights: Tensor) -> Tensor:
        return super().forward(tokens * self.scale, numbers, weights)
