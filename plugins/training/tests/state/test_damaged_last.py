"""`ckpt_path="last"` goes on from the newest checkpoint that is whole."""

import pytest

from core.callbacks import ModelCheckpoint
from support.tiny import Tiny, loader, make_trainer


@pytest.mark.parametrize("plugins", [None, "async"])
def test_a_damaged_one_is_passed_over_and_named(tmp_path, plugins):
    def fit(max_epochs):
        checkpoint = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
        trainer = make_trainer(tmp_path, checkpoint, max_epochs=max_epochs, plugins=plugins)
        module, seen = Tiny(), []
        module.on_train_start = lambda: seen.append(trainer.global_step)
        trainer.fit(module, loader(), loader(), ckpt_path="last")
        return seen[0]

    assert fit(3) == 0
    assert fit(3) == 12
    (data,) = (tmp_path / "epoch=2.ckpt").glob("*.data")
    content = bytearray(data.read_bytes())
    content[10] ^= 1
    data.write_bytes(content)
    with pytest.warns(
        UserWarning,
        match=r"passes over what is no whole checkpoint: .*epoch=2.ckpt/.*.data' is damaged",
    ):
        assert fit(2) == 8
