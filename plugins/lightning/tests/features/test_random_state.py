"""Which numbers are drawn: the samples of batches, and what a hook draws."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.numbers

UNDISTURBED = "3256 4170 5247 0361"
FIRST = "0.3734 1056 2374 7316 4502"
AT_START = "0.9320 1056 2374 7316 4502"
EACH_EPOCH = "0.9320 1056 2374 0.9704 5637 0124"
AT_VALIDATION = "0.9320 3256 4170 0.2121 7316 4502 0.9397"
AFTER_EPOCH = "3256 4170 0.2121 7316 4502 0.9397"


def loader(lit, batch_size=4, shuffle=True):
    return DataLoader(TensorDataset(lit.DATA, torch.arange(len(lit.DATA))), batch_size, shuffle)


def drawn(lit, hook, owner="module", sanity_steps=0):
    """The samples of each batch, and what the hook draws, in order; and the weights, which follow
    from dropout.
    """
    lit.pl.seed_everything(3, verbose=False)

    class Dropped(lit.Plain):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 1))

        def training_step(self, batch, batch_idx):
            self.seen.append("".join(map(str, batch[1].tolist())))
            return super().training_step(batch, batch_idx)

    class Draws(lit.pl.Callback):
        pass

    def draw(self, *args, **kwargs):
        net.seen.append(f"{float(torch.rand(1)):.4f}")

    setattr({"module": Dropped, "callback": Draws}[owner], hook, draw)
    net = Dropped()
    trainer = lit.make_trainer(num_sanity_val_steps=sanity_steps, max_epochs=2, callbacks=[Draws()])
    trainer.fit(net, loader(lit), loader(lit, shuffle=False))
    return " ".join(net.seen), lit.total(net)


@pytest.mark.parametrize(
    ("hook", "options", "seen", "total"),
    [
        ("no_hook", {}, UNDISTURBED, 2.4499),
        ("no_hook", {"sanity_steps": 2}, UNDISTURBED, 2.4499),
        ("setup", {}, FIRST, 2.2605),
        ("configure_model", {}, FIRST, 2.2605),
        ("on_fit_start", {}, FIRST, 2.2605),
        (
            "on_sanity_check_end",
            {"sanity_steps": 2, "owner": "callback"},
            f"0.9320 {UNDISTURBED}",
            2.4499,
        ),
        ("on_train_start", {}, AT_START, 2.2605),
        ("on_train_start", {"sanity_steps": 2}, AT_START, 2.2605),
        ("on_train_start", {"owner": "callback"}, AT_START, 2.2605),
        ("on_train_epoch_start", {}, EACH_EPOCH, 2.0464),
        ("on_train_epoch_start", {"sanity_steps": 2}, EACH_EPOCH, 2.0464),
        ("on_train_batch_start", {}, "0.2698 3256 0.5191 4170 0.4910 5637 0.6012 0124", 1.9181),
        ("on_before_zero_grad", {}, "3256 0.4369 4170 0.1100 5637 0.4569 0124 0.9397", 1.9299),
        ("on_train_batch_end", {}, "3256 0.4369 4170 0.1100 5637 0.4569 0124 0.9397", 1.9299),
        ("on_validation_start", {"sanity_steps": 2}, AT_VALIDATION, 2.3386),
        ("on_validation_end", {"sanity_steps": 2}, AT_VALIDATION, 2.3386),
        (
            "on_validation_model_eval",
            {"sanity_steps": 2},
            "0.9320 3256 4170 0.2121 2075 1634 0.8059",
            2.1573,
        ),
        ("on_train_epoch_end", {}, AFTER_EPOCH, 2.3386),
        ("on_train_epoch_end", {"owner": "callback"}, AFTER_EPOCH, 2.3386),
    ],
)
def test_a_hook_that_draws(lit, hook, options, seen, total):
    assert drawn(lit, hook, **options) == (seen, total)


def test_several_loaders(lit):
    class Two(lit.Plain):
        def training_step(self, batch, batch_idx):
            self.seen.append("".join(map(str, [*batch["a"][1].tolist(), *batch["b"][1].tolist()])))
            return self.loss(batch["a"])

        def on_train_start(self):
            torch.rand(1)

    lit.pl.seed_everything(3, verbose=False)
    net = Two()
    lit.make_trainer(max_epochs=2).fit(net, {"a": loader(lit), "b": loader(lit, batch_size=2)})
    assert " ".join(net.seen) == "253732 160456 652741 341070 017413 236545 531006 264772"


def test_evaluation(lit):
    class Noisy(lit.Plain):
        def on_test_start(self):
            self.seen.append(f"{float(torch.rand(1)):.4f}")

        on_predict_start = on_test_start

    lit.pl.seed_everything(3, verbose=False)
    net, trainer = Noisy(), lit.make_trainer()
    trainer.test(net, lit.load(), verbose=False)
    trainer.predict(net, lit.load())
    assert (net.seen, round(float(torch.rand(1)), 4)) == (["0.9527", "0.3734"], 0.3051)


def test_after_fit(lit):
    drawn(lit, "no_hook")
    assert round(float(torch.rand(1)), 4) == 0.4663
