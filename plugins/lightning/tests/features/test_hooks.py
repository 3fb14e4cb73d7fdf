"""What hooks find and get, and the states of callbacks."""

import pytest
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.numbers


def test_a_sanity_check(lit):
    seen = []

    class Seen(lit.pl.Callback):
        def on_sanity_check_start(self, trainer, module):
            seen.append(("start", trainer.sanity_checking, module.training))

        def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
            seen.append((batch_idx, trainer.sanity_checking, trainer.validating, trainer.state.stage.value))

        def on_sanity_check_end(self, trainer, module):
            seen.append(("end", trainer.sanity_checking, lit.rounded(trainer.callback_metrics)))

        def on_train_start(self, trainer, module):
            seen.append((trainer.sanity_checking, trainer.state.stage.value, len(trainer.callback_metrics)))

    lit.fit(lit.Plain(), callbacks=[Seen()], num_sanity_val_steps=1, max_epochs=1, limit_val_batches=1)
    assert seen == [
        ("start", True, True),
        (0, True, False, "sanity_check"),
        ("end", True, {"val": 6.3444}),
        (False, "train", 0),
        (0, False, True, "validate"),
    ]


def test_an_exception(lit):
    seen = []

    class Failing(lit.Plain):
        def training_step(self, batch, batch_idx):
            if batch_idx == 1:
                raise ValueError("no")
            return super().training_step(batch, batch_idx)

        def on_exception(self, exception):
            seen.append("the module isn't told")

    class Seen(lit.pl.Callback):
        def on_exception(self, trainer, module, exception):
            seen.append((str(exception), trainer.global_step))

    trainer = lit.make_trainer(max_epochs=1, callbacks=[Seen()])
    with pytest.raises(ValueError, match="no"):
        trainer.fit(Failing(), lit.load())
    assert (seen, trainer.state.status.value, trainer.interrupted) == ([("no", 1)], "interrupted", True)


@pytest.mark.parametrize("batches", [1, 2])
def test_outputs_of_steps(lit, batches):
    class Returning(lit.Plain):
        def training_step(self, batch, batch_idx):
            return {"loss": self.loss(batch), "other": 3.0}

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.seen.append(lit.rounded(outputs))

    net = Returning()
    lit.fit(net, max_epochs=1, accumulate_grad_batches=batches, limit_train_batches=2)
    assert net.seen == [{"loss": round(6.3444 / batches, 4), "other": 3.0}, {"loss": OUTPUTS[batches], "other": 3.0}]


OUTPUTS = {1: 0.7179, 2: 0.3911}


def test_outputs_of_steps_that_are_skipped(lit):
    class Skipping(lit.Plain):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) if batch_idx % 2 else None

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.seen.append((sorted(outputs), self.global_step))

    net = Skipping()
    lit.fit(net, max_steps=5)
    assert net.seen == [([], 1), (["loss"], 2), ([], 3), (["loss"], 4), ([], 5)]
    assert lit.total(net) == 2.2954


def test_a_hook_that_calls_the_base_by_keyword(lit):
    class Own(lit.pl.Callback):
        def on_train_start(self, trainer, pl_module):
            super().on_train_start(trainer=trainer, pl_module=pl_module)

    assert lit.fit(lit.Plain(), callbacks=[Own()], max_epochs=1).global_step == 4


def test_a_loader_is_asked_for_no_batch_beyond_its_length(lit):
    asked = []

    class Counted(DataLoader):
        def __iter__(self):
            yield from super().__iter__()
            asked.append("beyond")

    lit.fit(lit.Plain(), val=False, train=Counted(TensorDataset(lit.DATA), batch_size=2))
    assert asked == []


def test_states_of_callbacks(lit):
    class Counting(lit.pl.Callback):
        def __init__(self, name):
            self.name, self.count = name, 0

        @property
        def state_key(self):
            return f"Counting[{self.name}]"

        def on_train_batch_end(self, *_):
            self.count += 1

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    lit.fit(lit.Plain(), callbacks=[Counting("a"), Counting("b")], max_epochs=1).save_checkpoint("a.ckpt")
    again = [Counting("b"), Counting("c"), Counting("a")]
    lit.fit(lit.Plain(), callbacks=again, ckpt_path="a.ckpt")
    assert [each.count for each in again] == [8, 4, 8]
