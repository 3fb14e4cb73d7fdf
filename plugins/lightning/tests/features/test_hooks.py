"""What hooks find and get."""

import pytest

pytestmark = pytest.mark.numbers


def test_an_exception(lit):
    seen = []

    class Failing(lit.Plain):
        def training_step(self, batch, batch_idx):
            if batch_idx == 1:
                raise ValueError("no")
            return super().training_step(batch, batch_idx)

    class Seen(lit.pl.Callback):
        def on_exception(self, trainer, module, exception):
            seen.append((str(exception), trainer.global_step))

    trainer = lit.make_trainer(max_epochs=1, callbacks=[Seen()])
    with pytest.raises(ValueError, match="no"):
        trainer.fit(Failing(), lit.load())
    assert (seen, trainer.state.status.value, trainer.interrupted) == (
        [("no", 1)],
        "interrupted",
        True,
    )


@pytest.mark.parametrize("batches", [1, 2])
def test_outputs_of_steps(lit, batches):
    class Returning(lit.Plain):
        def training_step(self, batch, batch_idx):
            return {"loss": self.loss(batch), "other": 3.0}

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.seen.append(lit.rounded(outputs))

    net = Returning()
    lit.fit(net, max_epochs=1, accumulate_grad_batches=batches, limit_train_batches=2)
    assert net.seen == [
        {"loss": round(6.3444 / batches, 4), "other": 3.0},
        {"loss": {1: 0.7179, 2: 0.3911}[batches], "other": 3.0},
    ]


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
