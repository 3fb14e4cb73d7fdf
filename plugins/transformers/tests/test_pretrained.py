"""Models of transformers are loaded into strategies and saved from them, bit by bit."""

import json
import os

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from click.testing import CliRunner
from transformers_models import (
    CAUSAL,
    MODELS,
    Tuned,
    assert_alike,
    batches,
    carry,
    make,
    tensors,
    tune,
)

from core import (
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    Fabric,
    ModuleError,
    Trainer,
)
from core.cli.commands import command
from core.strategies import FSDPStrategy
from core_testing.ranks import QUIET, Backend
from core_transformers import (
    LoadPretrained,
    SavePretrained,
    from_config,
    load_pretrained,
    save_pretrained,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A folder with a folder for each model, as transformers has written it."""
    folder = tmp_path_factory.mktemp("sources")
    for name in MODELS:
        make(name, folder / name)
    return folder


def pipeline():
    from core_parallel import MeshParallelStrategy

    return MeshParallelStrategy(pipeline=2)


def tensor():
    from core_parallel import MeshParallelStrategy

    return MeshParallelStrategy(tensor=2)


# torch's, of first values that aren't kept
@pytest.mark.filterwarnings("ignore:DTensor random operators")
@pytest.mark.parametrize(
    ("strategy", "names", "share"),
    [
        (lambda: "ddp", ["dense", "mixture"], 1.0),
        (lambda: "fsdp", list(MODELS), 0.6),
        (tensor, ["dense", "tied", "mixture"], 0.8),
        (pipeline, ["dense", "tied", "mixture"], 0.8),
    ],
    ids=["ddp", "fsdp", "tensor", "pipeline"],
)
def test_ranks_load_their_parts_and_save_the_whole(sources, tmp_path, strategy, names, share):
    held = Backend(strategy, num_processes=2).run(carry, names, sources, tmp_path)
    for name in names:
        assert_alike(sources, tmp_path, name)
        total = sum(tensor.nbytes for tensor in tensors(sources / name).values())
        assert all(each[name] <= share * total * 1.05 for each in held), (held, total)


@pytest.fixture
def fabric():
    made = Fabric(accelerator="cpu")
    yield made
    made.teardown()


def set_up(fabric, folder, **changes):
    config = transformers.AutoConfig.from_pretrained(folder)
    for name, value in changes.items():
        setattr(config, name, value)
    return fabric.setup_module(from_config(fabric, config, CAUSAL))


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16-mixed", torch.float32), ("64-true", torch.float64)]
)
def test_the_precision_says_in_which_dtype_a_model_is_made_and_saved(
    sources, tmp_path, precision, dtype
):
    fabric = Fabric(accelerator="cpu", precision=precision)
    model = set_up(fabric, sources / "dense", dtype=torch.bfloat16)
    load_pretrained(fabric, model, sources / "dense")
    assert {each.dtype for each in model.parameters()} == {dtype}
    save_pretrained(fabric, model, tmp_path / "dense")
    assert {each.dtype for each in CAUSAL.from_pretrained(tmp_path / "dense").parameters()} == {
        dtype
    }
    fabric.teardown()


def test_files_that_do_not_fit_are_refused_by_name_and_change_nothing(fabric, sources, tmp_path):
    model = set_up(fabric, sources / "dense", num_hidden_layers=3, vocab_size=65)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    message = (
        r"doesn't fit LlamaForCausalLM: 'lm_head.weight' has the shape \(64, 32\) in the files, "
        r"and \(65, 32\) in the model; .*'model.layers.2.input_layernorm.weight' is not in the "
        r"files.*; and \d+ more. "
        "Make the model from the config"
    )
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(fabric, model, sources / "dense")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    fewer = set_up(fabric, sources / "dense", num_hidden_layers=1)
    with pytest.raises(CheckpointError, match=r"'model.layers.1.\S+' is not in the model"):
        load_pretrained(fabric, fewer, sources / "dense")
    load_pretrained(fabric, fewer, sources / "dense", strict=False)
    load_pretrained(
        fabric,
        set_up(fabric, sources / "mixture", num_hidden_layers=1),
        sources / "mixture",
        strict=False,
    )
    assert torch.equal(
        fewer.state_dict()["lm_head.weight"], tensors(sources / "dense")["lm_head.weight"]
    )


def test_a_folder_that_is_none_or_damaged_is_refused(fabric, sources, tmp_path):
    model = set_up(fabric, sources / "dense")
    with pytest.raises(
        CheckpointNotFoundError,
        match=r"has neither model.safetensors nor model.safetensors.index.json",
    ):
        load_pretrained(fabric, model, tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    with pytest.raises(CheckpointCorruptedError, match="is no index of weights"):
        load_pretrained(fabric, model, tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"lm_head.weight": "a.safetensors"}}'
    )
    with pytest.raises(CheckpointCorruptedError, match=r"is incomplete: a\.safetensors is missing"):
        load_pretrained(fabric, model, tmp_path)
    (tmp_path / "a.safetensors").write_bytes(b"nothing")
    with pytest.raises(
        CheckpointCorruptedError, match=r"a.safetensors' is not a file of safetensors"
    ):
        load_pretrained(fabric, model, tmp_path)
    with pytest.raises(
        ModuleError, match="Expected one model of transformers in Linear, found none"
    ):
        load_pretrained(fabric, fabric.setup_module(torch.nn.Linear(1, 1)), tmp_path)


def test_a_folder_is_there_whole_or_not_at_all(fabric, sources, tmp_path, monkeypatch):
    model = set_up(fabric, sources / "dense")
    with pytest.raises(
        ConfigurationError, match=r"something is there\. Name a folder that doesn't exist"
    ):
        save_pretrained(fabric, model, tmp_path)

    class Fails:
        def save_pretrained(self, folder):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        save_pretrained(fabric, model, tmp_path / "model", beside=[Fails()])
    assert not os.listdir(tmp_path)
    save_pretrained(fabric, model, tmp_path / "half", dtype=torch.bfloat16)
    assert {value.dtype for value in tensors(tmp_path / "half").values()} == {torch.bfloat16}
    assert CAUSAL.from_pretrained(tmp_path / "half").dtype == torch.bfloat16


def test_a_folder_for_the_end_is_refused_at_the_beginning(sources, tmp_path):
    trainer = Trainer(**QUIET, accelerator="cpu", callbacks=SavePretrained(tmp_path), max_steps=1)
    with pytest.raises(ConfigurationError, match="something is there"):
        trainer.fit(
            Tuned(sources / "dense"), torch.utils.data.DataLoader(torch.arange(8).reshape(2, 4))
        )


# which transformers refuses to save
GENERATES = {"eos_token_id": [2, 7], "temperature": 0.7, "do_sample": False}


def test_how_a_model_generates_is_kept(tmp_path):
    def generates(folder):
        return json.loads((folder / "generation_config.json").read_text())

    make("dense", first := tmp_path / "first")
    (first / "generation_config.json").write_text(json.dumps({**generates(first), **GENERATES}))
    Backend(lambda: "single_device").run(tune, tmp_path, "one")
    tuned = Tuned(first)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=1,
        callbacks=[SavePretrained(tmp_path / "saved" / "two")],
        **QUIET,
    )
    trainer.fit(tuned, batches(1, 1))  # from first values
    arguments = [
        str(tmp_path / "last.ckpt"),
        str(tmp_path / "saved" / "three"),
        "--as",
        "transformers",
    ]
    assert (
        CliRunner()
        .invoke(command, ["checkpoint", "convert", *arguments], catch_exceptions=False)
        .exit_code
        == 0
    )
    for name in ("one", "two", "three"):
        assert GENERATES.items() <= generates(tmp_path / "saved" / name).items(), name
    assert tuned.model.generation_config.eos_token_id == [2, 7]


def test_ranks_that_end_with_fit_give_back_a_model_made_by_their_strategy(tmp_path):
    make("dense", tmp_path / "first")
    callbacks = [LoadPretrained(tmp_path / "first"), SavePretrained(tmp_path / "second")]
    strategy = FSDPStrategy(start_method="fork")  # builds on meta
    options = {
        "strategy": strategy,
        "devices": 2,
        "precision": "bf16-true",
        "max_steps": 1,
        "callbacks": callbacks,
    }
    tuned = Tuned(tmp_path / "first")
    Trainer(accelerator="cpu", **options, **QUIET).fit(tuned, batches(2, 1))
    saved = CAUSAL.from_pretrained(tmp_path / "second", dtype="auto")
    for (name, own), expected in zip(
        tuned.model.named_parameters(), saved.parameters(), strict=True
    ):
        assert own.dtype == torch.bfloat16
        assert torch.equal(own, expected), name
    assert torch.equal(tuned.model.model.rotary_emb.inv_freq, saved.model.rotary_emb.inv_freq)
    assert tuned.trainer.global_step == 1
    assert strategy.init_context(empty=True)  # its own again
