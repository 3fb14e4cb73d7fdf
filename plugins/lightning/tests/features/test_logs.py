import pytest
import torch


@pytest.mark.parametrize(
    ("reduce_fx", "expected"), [("mean", 1.5), ("sum", 6.0), ("min", 0.0), ("max", 3.0), (torch.sum, 6.0)]
)
def test_reductions(lit, reduce_fx, expected):
    class Reducing(lit.Plain):
        def training_step(self, batch, batch_idx):
            self.log("a", float(batch_idx), on_step=False, on_epoch=True, reduce_fx=reduce_fx)
            return self.loss(batch)

    assert lit.fit(Reducing(), max_epochs=1).callback_metrics["a"] == expected


def test_means_are_weighted_by_the_size_of_the_batch(lit):
    class Weighed(lit.Plain):
        def validation_step(self, batch, batch_idx):
            self.log("by_batch", float(batch_idx))
            self.log("by_size", float(batch_idx), batch_size=batch_idx + 1)

    (found,) = lit.make_trainer().validate(Weighed(), lit.load(3), verbose=False)
    assert lit.rounded(found) == {"by_batch": 0.875, "by_size": 1.3333}


def test_hooks_log(lit):
    class Hooks(lit.Plain):
        def on_train_epoch_start(self):
            self.log("start", 1.0)

        def on_train_batch_start(self, batch, batch_idx):
            self.log("batch", float(batch_idx))

        def on_train_epoch_end(self):
            self.log("end", 3.0)

        def on_validation_epoch_end(self):
            self.log("validated", 4.0)

    found = lit.fit(Hooks(), max_epochs=1).callback_metrics
    assert lit.rounded(found).items() >= {"batch": 3.0, "end": 3.0, "start": 1.0, "validated": 4.0}.items()


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
