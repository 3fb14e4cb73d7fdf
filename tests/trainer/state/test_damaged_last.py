"""`ckpt_path="last"` goes on from the newest checkpoint that is whole."""

import pytest

from core.callbacks import ModelCheckpoint
from support.tiny import Tiny, loader, make_trainer


def fit(folder, max_epochs, **options):
    checkpoint = ModelCheckpoint(folder, "{epoch}", save_top_k=-1)
    trainer = make_trainer(folder, checkpoint, max_epochs=max_epochs, **options)
    seen = []
    module = Tiny()
    module.on_train_start = lambda: seen.append(trainer.global_step)
    trainer.fit(module, loader(), loader(), ckpt_path="last")
    return seen[0]


@pytest.mark.parametrize("plugins", [None, "async"])
def test_a_damaged_one_is_passed_over_and_named(tmp_path, plugins):
    assert fit(tmp_path, 3, plugins=plugins) == 0
    assert fit(tmp_path, 3, plugins=plugins) == 12
    (data,) = (tmp_path / "epoch=2.ckpt").glob("*.data")
    content = bytearray(data.read_bytes())
    content[10] ^= 1
    data.write_bytes(content)
    with pytest.warns(
        UserWarning, match=r"passes over what is no whole checkpoint: .*epoch=2.ckpt/.*.data' is damaged"
    ):
        assert fit(tmp_path, 2, plugins=plugins) == 8
