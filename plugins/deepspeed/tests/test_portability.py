"""A checkpoint of any stage and number of processes goes on under any other, and under other strategies; and back."""

import functools
from dataclasses import replace

import pytest
from zero_ranks import CUT

from core.checkpoint import load_checkpoint
from support.portability import FORK, SINGLE_DEVICE, Configuration, compare, read_all, restore, write

# Losses relative to the largest. Gradients are added in another order, in float32.
TOLERANCE = 1e-5
IN_FLOAT32 = {"precision": "32-true", "clipping": {"max_norm": 1.0}}

one_device = replace(SINGLE_DEVICE, **IN_FLOAT32)
OTHERS = [one_device, *(Configuration(alias, 2, options=FORK, **IN_FLOAT32) for alias in ("ddp", "fsdp"))]
# Alone, stages 1 and 2 are as the third.
STAGES = [
    Configuration(
        f"deepspeed_stage_{stage}",
        size,
        f"zero{stage}",
        options={**FORK, **({"config": CUT} if stage == 3 else {})},
        **IN_FLOAT32,
    )
    for stage, size, cut in ((1, 2, {}), (2, 2, {}), (3, 1, {"config": CUT}), (3, 2, {"config": CUT}))
]
EVERY = {each.name: each for each in [*OTHERS, *STAGES]}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The deviations of a reader from a run on one device, by what it reads."""
    folder = tmp_path_factory.mktemp("matrix")
    expected = write(replace(one_device, label="reference"), folder)[1]
    paths = {name: folder / f"{name}.ckpt" for name in EVERY}
    for writer in EVERY.values():
        write(writer, folder)

    @functools.cache
    def read(reader):
        losses = read_all(EVERY[reader], paths.values(), restore)
        return {writer: compare(losses[path], expected, TOLERANCE) for writer, path in paths.items()}

    return read


@pytest.mark.timeout(600)
@pytest.mark.parametrize("reader", EVERY)
@pytest.mark.parametrize("writer", EVERY)
def test_a_pair(found, writer, reader):
    cell = found(reader)[writer]
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
