"""A checkpoint of any stage and number of processes goes on under any other, and under other strategies; and back."""

import functools
from dataclasses import replace

import pytest

from core.checkpoint import load_checkpoint
from support.portability import FORK, SINGLE_DEVICE, Configuration, compare, read_all, restore, write

# Losses relative to the largest. Gradients are added in another order, in float32.
TOLERANCE = 1e-5
IN_FLOAT32 = {"precision": "32-true", "clipping": {"max_norm": 1.0}}
CUT = {"config": {"zero_optimization": {"stage3_param_persistence_threshold": 0}}}

one_device = replace(SINGLE_DEVICE, **IN_FLOAT32)
OTHERS = [one_device, *(Configuration(alias, 2, options=FORK, **IN_FLOAT32) for alias in ("ddp", "fsdp"))]
STAGES = [
    Configuration(
        f"deepspeed_stage_{stage}", size, f"zero{stage}", options={**FORK, **(CUT if stage == 3 else {})}, **IN_FLOAT32
    )
    for stage in (1, 2, 3)
    for size in (1, 2)
]
EVERY = {each.name: each for each in [*OTHERS, *STAGES]}
MOST = {name: each for name, each in EVERY.items() if name not in ("zero1-1", "zero2-1")}  # alone as `zero3-1` is


def pairs(among):
    """Those of which one is a stage."""
    return [(one, other) for one in among for other in among if one.startswith("zero") or other.startswith("zero")]


@pytest.fixture(scope="module")
def expected():
    """Losses of the second half of a run on one device."""

    def losses(folder):
        return write(replace(one_device, label="reference"), folder)[1]

    return losses


@pytest.fixture(scope="module")
def found(tmp_path_factory, expected):
    """The deviation of each pair among some."""

    @functools.cache
    def run(names):
        folder = tmp_path_factory.mktemp("matrix")
        wanted = expected(folder)
        paths = {name: folder / f"{name}.ckpt" for name in names}
        for writer in names:
            write(EVERY[writer], folder)
        losses = {name: read_all(EVERY[name], paths.values(), restore) for name in names}
        return {
            (writer, reader): compare(losses[reader][paths[writer]], wanted, TOLERANCE)
            for writer, reader in pairs(names)
        }

    return run


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("writer", "reader"), pairs(MOST))
def test_a_pair(found, writer, reader):
    cell = found(tuple(MOST))[writer, reader]
    assert cell.is_good, cell


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("writer", "reader"), pairs(EVERY))
def test_every_pair(found, writer, reader):
    cell = found(tuple(EVERY))[writer, reader]
    assert cell.is_good, cell


IN_BF16 = [replace(each, precision="bf16-mixed") for each in STAGES if each.num_processes == 2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("writer", IN_BF16, ids=lambda each: each.name)
def test_masters_of_bf16_go_on_exactly(tmp_path, writer):
    expected = write(writer, tmp_path)[1]
    path = tmp_path / f"{writer.name}.ckpt"
    assert {str(value.dtype) for name, value in load_checkpoint(path)["model"].items() if "frozen" not in name} == {
        "torch.float32",
        "torch.int64",
    }
    for reader in IN_BF16:
        cell = compare(read_all(reader, [path], restore)[path], expected, TOLERANCE)
        assert cell.is_good, (reader.name, cell)
