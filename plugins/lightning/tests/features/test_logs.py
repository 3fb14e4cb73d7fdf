import pytest
import torch


@pytest.mark.parametrize("value", [torch.ones(2), "text", {"b": 1.0}])
def test_what_cannot_be_logged(lit, value):
    class Logging(lit.Plain):
        def training_step(self, batch, batch_idx):
            self.log("a", value)
            return self.loss(batch)

    with pytest.raises((ValueError, TypeError), match=r"self\.log"):
        lit.fit(Logging(), max_epochs=1)


def test_several_loaders(lit):
    class Two(lit.Plain):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("with", float(dataloader_idx))
            self.log(f"without_{dataloader_idx}", 1.0 + dataloader_idx, add_dataloader_idx=False)

    assert lit.make_trainer().validate(Two(), [lit.load(), lit.load(4)], verbose=False) == [
        {"with/dataloader_idx_0": 0.0, "without_0": 1.0},
        {"with/dataloader_idx_1": 1.0, "without_1": 2.0},
    ]
