"""The examples in every dimension: one argument changes, and the numbers are those of one
device.
"""

import runpy
from functools import cache, partial

import pytest
from language import ALONE

from core_parallel import MeshParallelStrategy
from core_testing.ranks import Backend
from support.checkout import in_checkout

_EXAMPLES = in_checkout("examples")
_PRECISION = {"precision": "64-true"}


def _on_ranks(example, parallel):
    strategy = partial(runpy.run_path(str(_EXAMPLES / example))["make_strategy"], "auto", parallel)
    made = strategy()
    assert isinstance(made, MeshParallelStrategy)
    return Backend(strategy, num_processes=2)


@cache
def _on_one_device(example):
    return ALONE.run(example)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallel", ["data=2", "shard=2", "tensor=2", "pipeline=2,schedule=1F1B", "context=2"]
)
def test_char_gpt_prints_in_each_dimension_what_it_prints_on_one_device(parallel):
    def _char_gpt(rank):
        """What rank 0 prints of two steps, on less text and in smaller batches."""
        printed = []
        fabric = rank.fabric(**_PRECISION)
        fabric.print = lambda *texts: printed.extend(map(str, texts))
        train = runpy.run_path(str(_EXAMPLES / "char_gpt.py"))["train"]
        train.__globals__.update(TEXT_BYTES=20_000, BATCH_SIZE=4)
        train(fabric, 2, 20)
        return printed[1:]  # the first line has the number of processes

    expected = _on_one_device(_char_gpt)
    assert [line[:16] for line in expected] == ["step    2   loss", expected[1][:16]]
    assert expected[1].startswith("\ndef ")
    assert _on_ranks("char_gpt.py", parallel).run(_char_gpt)[0] == expected


# Its config has plans for tensor and pipeline, and positions that context needs. The others don't
# look at the model.
@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["tensor=2", "pipeline=2", "context=2"])
def test_llama_learns_in_each_dimension_what_it_learns_on_one_device(parallel):
    def _llama(rank):
        """The loss after five steps."""
        trainer = rank.trainer(max_epochs=1, limit_train_batches=5, **_PRECISION)
        runpy.run_path(str(_EXAMPLES / "llama.py"))["train"](trainer)
        return float(trainer.callback_metrics["validation_loss"])

    pytest.importorskip(
        "transformers", reason="needs transformers, which the extra hugging-face brings"
    )
    assert _on_ranks("llama.py", parallel).run(_llama)[0] == pytest.approx(
        _on_one_device(_llama), rel=1e-10
    )
