"""Masters of bf16 go on exactly from a checkpoint of any stage; in float32 the kit goes on from and
to each.
"""

import pytest
from zero_ranks import CUT

from core.checkpoint import load_checkpoint
from support.portability import FORK, Configuration, compare, read_all, restore, write

CLIPPED = {"precision": "bf16-mixed", "clipping": {"max_norm": 1.0}}
STAGES = [
    *(Configuration(f"deepspeed_stage_{stage}", 2, options=FORK, **CLIPPED) for stage in (1, 2)),
    Configuration("deepspeed_stage_3", 2, options={**FORK, "config": CUT}, **CLIPPED),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("writer", STAGES, ids=lambda each: each.name)
def test_masters_of_bf16_go_on_exactly(tmp_path, writer):
    expected = write(writer, tmp_path)[1]
    path = tmp_path / f"{writer.name}.ckpt"
    assert {
        str(value.dtype)
        for name, value in load_checkpoint(path)["model"].items()
        if "frozen" not in name
    } == {
        "torch.float32",
        "torch.int64",
    }
    for reader in STAGES:
        # Gradients are added in another order, in float32.
        cell = compare(read_all(reader, [path], restore)[path], expected, 1e-5)
        assert cell.is_good, (reader.name, cell)
