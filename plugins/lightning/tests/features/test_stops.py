import pytest


@pytest.mark.parametrize(
    ("stop_at", "options", "seen", "steps"),
    [
        (1, {}, "val 2, end 0, over 1", 2),
        (3, {}, "val 4, end 0, over 1", 4),
        (1, {"val": False}, "end 0, over 1", 2),
        (1, {"min_epochs": 2}, "val 4, end 0, val 8, end 1, over 2", 8),
        (1, {"min_steps": 6}, "val 4, end 0, val 6, end 1, over 2", 6),
        (2, {"val_check_interval": 2}, "val 2, val 3, end 0, over 1", 3),
        (2, {"check_val_every_n_epoch": 2}, "end 0, over 1", 3),
        (None, {"max_steps": 6, "max_epochs": -1}, "val 4, end 0, end 1, over 2", 6),
        (None, {"max_steps": 8, "max_epochs": -1}, "val 4, end 0, val 8, end 1, over 2", 8),
    ],
)
def test_a_run_that_stops(lit, stop_at, options, seen, steps):
    class Counted(lit.Plain):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            if batch_idx == stop_at:
                self.trainer.should_stop = True

        def on_validation_start(self):
            self.seen.append(f"val {self.global_step}")

        def on_train_epoch_end(self):
            self.seen.append(f"end {self.current_epoch}")

        def on_train_end(self):
            self.seen.append(f"over {self.current_epoch}")

    net = Counted()
    trainer = lit.fit(net, **{"max_epochs": 3, **options})
    assert (", ".join(net.seen), trainer.global_step) == (seen, steps)


@pytest.mark.parametrize(
    ("stopping", "options", "validated", "epoch"),
    [
        ({"patience": 1}, {}, [4, 8], 1),
        ({"patience": 1}, {"min_epochs": 5}, [4, 8, 12, 16, 20], 4),
        ({"patience": 1}, {"min_steps": 14}, [4, 8, 12, 14], 3),
        ({"patience": 2}, {"val_check_interval": 1}, [*range(1, 13)], 2),
        ({"monitor": "rising", "patience": 2, "check_on_train_epoch_end": True}, {}, [4, 8, 12], 2),
    ],
)
def test_early_stopping(lit, stopping, options, validated, epoch):
    callback = lit.pl.callbacks.EarlyStopping(**{"monitor": "val", **stopping})
    net = lit.Rising()
    trainer = lit.fit(net, callbacks=[callback], max_epochs=9, **options)
    assert (net.seen, trainer.global_step, callback.stopped_epoch) == (
        validated,
        validated[-1],
        epoch,
    )
