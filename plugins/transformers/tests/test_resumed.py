"""A run from a folder of transformers that stops and goes on ends as one that doesn't; a load may
be repeated.
"""

import pytest
import torch

pytest.importorskip("transformers")

from transformers_models import CAUSAL, Tuned, assert_alike, batches, make, tensors

from core import Fabric
from core_testing.ranks import Backend
from core_transformers import (
    LoadPretrained,
    SavePretrained,
    from_config,
    load_pretrained,
    save_pretrained,
)

pytestmark = pytest.mark.slow


def run(rank, folder, steps, target, ckpt_path=None):
    callbacks = [LoadPretrained(folder / "first"), SavePretrained(folder / target)]
    trainer = rank.trainer(max_steps=steps, callbacks=callbacks)
    trainer.fit(
        Tuned(folder / "first"), batches(rank.backend.num_processes, 4), ckpt_path=ckpt_path
    )
    trainer.save_checkpoint(folder / f"{target}.ckpt")


def test_a_run_goes_on_under_its_strategy_bit_for_bit_and_under_another(tmp_path):
    make("mixture", tmp_path / "first")
    shards = Backend(lambda: "fsdp", num_processes=2)
    shards.run(run, tmp_path, 4, "whole")
    shards.run(run, tmp_path, 2, "half")
    shards.run(run, tmp_path, 4, "same", tmp_path / "half.ckpt")
    Backend(lambda: "single_device").run(run, tmp_path, 4, "other", tmp_path / "half.ckpt")
    whole, same, other = (tensors(tmp_path / each) for each in ("whole", "same", "other"))
    assert whole.keys() == same.keys() == other.keys()
    assert not [name for name in whole if not torch.equal(same[name], whole[name])]
    for name, value in whole.items():
        torch.testing.assert_close(other[name], value, rtol=0, atol=1e-6)
        assert not torch.equal(value, tensors(tmp_path / "first")[name]), name


def test_a_second_load_is_as_the_first(tmp_path):
    for name in ("mixture", "dense"):
        make(name, tmp_path / "first" / name)
        fabric = Fabric(accelerator="cpu")
        model = fabric.setup_module(from_config(fabric, tmp_path / "first" / name, CAUSAL))
        for _ in range(2):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            load_pretrained(fabric, model, tmp_path / "first" / name)
        save_pretrained(fabric, model, tmp_path / "second" / name)
        assert_alike(tmp_path / "first", tmp_path / "second", name)
        fabric.teardown()
