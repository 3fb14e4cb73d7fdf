"""Adapters of peft are loaded and saved alone, under any strategy."""

import json

import pytest
import torch

pytest.importorskip("peft")
pytest.importorskip("transformers")

import peft
from transformers_models import CAUSAL, Tuned, batches, make, tensors

from core import CheckpointError, Fabric, ModuleError
from core_testing.ranks import Backend
from core_transformers import (
    LoadPretrained,
    SavePretrained,
    from_config,
    load_pretrained,
    save_pretrained,
)

pytestmark = [
    pytest.mark.slow,
    # peft 0.21 asks it
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]
STRATEGIES = {"single_device": 1, "ddp": 2, "fsdp": 2}
LORA = {"r": 2, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM"}


def test_new_adapters_begin_and_are_trained_alike_and_saved_alone(tmp_path):
    class Adapted(Tuned):
        def configure_model(self):
            super().configure_model()
            self.model = peft.get_peft_model(self.model, peft.LoraConfig(**LORA))

        def configure_optimizers(self):
            return torch.optim.SGD(
                [each for each in self.parameters() if each.requires_grad], lr=1.0, momentum=0.9
            )

    def adapt(rank, folder):
        torch.manual_seed(3)
        trainer = rank.trainer(
            max_steps=3,
            callbacks=[
                LoadPretrained(folder / "first"),
                SavePretrained(folder / rank.backend.strategy()),
            ],
        )
        trainer.fit(Adapted(folder / "first"), batches(rank.backend.num_processes, 3))

    make("dense", tmp_path / "first")
    for strategy, number in STRATEGIES.items():
        Backend(lambda strategy=strategy: strategy, num_processes=number).run(adapt, tmp_path)
    one = tensors(tmp_path / "single_device")
    for strategy in STRATEGIES:
        own = tensors(tmp_path / strategy)
        assert own.keys() == one.keys()
        for name, tensor in own.items():
            assert torch.count_nonzero(tensor), name
            torch.testing.assert_close(tensor, one[name], rtol=0, atol=1e-5)
        model = peft.PeftModel.from_pretrained(
            CAUSAL.from_pretrained(tmp_path / "first"), tmp_path / strategy
        )
        found = peft.get_peft_model_state_dict(model)
        assert not [name for name in own if not torch.equal(own[name], found[name])]


def loaded(fabric, folder, config, **options):
    model = peft.get_peft_model(from_config(fabric, folder / "first", CAUSAL), config)
    model = fabric.setup_module(model)
    load_pretrained(fabric, model, folder / "first", **options)
    return model


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_adapters_come_back_bit_for_bit(tmp_path, strategy):
    def carry(rank, folder):
        fabric = rank.fabric()
        config = peft.PeftConfig.from_pretrained(folder / "adapters")
        config.inference_mode = False
        model = loaded(fabric, folder, config, adapters=folder / "adapters")
        save_pretrained(fabric, model, folder / rank.backend.strategy())
        copy = loaded(fabric, folder, config)
        before = folder / f"{rank.backend.strategy()}-before"
        save_pretrained(fabric, copy, before)
        load_pretrained(fabric, copy, folder / "adapters")
        save_pretrained(fabric, copy, folder / f"{rank.backend.strategy()}-alone")
        fabric.teardown()

    make("dense", tmp_path / "first")
    config = peft.LoraConfig(**LORA, modules_to_save=["lm_head"], init_lora_weights=False)
    model = peft.get_peft_model(CAUSAL.from_pretrained(tmp_path / "first"), config)
    torch.nn.init.normal_(model.base_model.model.lm_head.modules_to_save["default"].weight)
    model.save_pretrained(tmp_path / "adapters")
    Backend(lambda: strategy, num_processes=STRATEGIES[strategy]).run(carry, tmp_path)
    first = tensors(tmp_path / "adapters")
    assert any("lm_head" in name for name in first)
    for folder in (tmp_path / strategy, tmp_path / f"{strategy}-alone"):
        own = tensors(folder)
        assert own.keys() == first.keys()
        assert not [name for name in first if not torch.equal(own[name], first[name])]
        settings = [
            json.loads((each / "adapter_config.json").read_text())
            for each in (folder, tmp_path / "adapters")
        ]
        assert not [key for key in settings[0] if settings[0][key] != settings[1][key]]
    begun = tensors(tmp_path / f"{strategy}-before")["base_model.model.lm_head.weight"]
    assert torch.equal(begun, tensors(tmp_path / "first")["lm_head.weight"])


def test_what_is_not_taken_is_refused_by_name(tmp_path):
    make("dense", tmp_path / "first")
    fabric = Fabric(accelerator="cpu")
    model = loaded(fabric, tmp_path, peft.LoraConfig(**LORA))
    save_pretrained(fabric, model, tmp_path / "adapters")
    other = loaded(fabric, tmp_path, peft.LoraConfig(**LORA, lora_alpha=32))
    with pytest.raises(
        CheckpointError, match=r"'lora_alpha' is 8 in adapter_config.json, and 32 in the model"
    ):
        load_pretrained(fabric, other, tmp_path / "adapters")
    plain = fabric.setup_module(from_config(fabric, tmp_path / "first", CAUSAL))
    with pytest.raises(ModuleError, match="has adapters of peft, and LlamaForCausalLM none"):
        load_pretrained(fabric, plain, tmp_path / "adapters")
    with pytest.raises(
        ModuleError, match=r"The first values of these adapters \(LORA, init_lora_weights='pissa'\)"
    ):
        loaded(fabric, tmp_path, peft.LoraConfig(**LORA, init_lora_weights="pissa"))
    with pytest.raises(ModuleError, match=r"The first values of these adapters \(IA3"):
        loaded(fabric, tmp_path, peft.IA3Config(task_type="CAUSAL_LM"))
    with pytest.raises(
        ModuleError, match="Adapters of the type PROMPT_TUNING compute what is saved"
    ):
        loaded(
            fabric, tmp_path, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
        )
    base = from_config(fabric, tmp_path / "first", CAUSAL)
    peft.inject_adapter_in_model(peft.LoraConfig(**LORA), base)
    with pytest.raises(
        ModuleError, match="has other tensors than the model in LlamaForCausalLM, which"
    ):
        save_pretrained(fabric, fabric.setup_module(base), tmp_path / "second")
    fabric.teardown()
