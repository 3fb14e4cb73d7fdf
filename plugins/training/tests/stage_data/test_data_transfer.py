import torch
from recording import Recorder, Validating, loader, make_trainer, seen

from core import DataModule


class Augmented(Validating):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        self.note("hooks", f"before {dataloader_idx}")
        return batch + 10

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        self.note("hooks", f"transfer {device} {dataloader_idx}")
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.note("hooks", f"after {dataloader_idx}")
        return batch * 2


def test_the_modules_hooks_in_training(tmp_path):
    make_trainer(tmp_path, limit_val_batches=0).fit(Augmented(tmp_path), loader(2))
    assert seen(tmp_path, "hooks") == ["before 0", "transfer cpu 0", "after 0"]
    assert seen(tmp_path) == [[20, 22]]


def test_evaluation_tells_which_loader(tmp_path):
    make_trainer(tmp_path).validate(Augmented(tmp_path), [loader(2), loader(2)])
    assert seen(tmp_path, "hooks")[3:] == ["before 1", "transfer cpu 1", "after 1"]
    assert make_trainer(tmp_path).predict(Augmented(tmp_path), loader(1))[0].tolist() == [200]


def test_a_data_modules_hooks_come_first(tmp_path):
    class Data(DataModule):
        def train_dataloader(self):
            return loader(2)

        def on_before_batch_transfer(self, batch, dataloader_idx):
            return batch - 1

    make_trainer(tmp_path, limit_val_batches=0).fit(Augmented(tmp_path), datamodule=Data())
    assert seen(tmp_path) == [[-2, 0]]
    assert seen(tmp_path, "hooks") == ["transfer cpu 0", "after 0"]


def test_precision_converts_what_a_hook_has_transferred(tmp_path):
    class Own(Recorder):
        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            return batch.to(device).float()

        def predict_step(self, batch):
            return batch

    (batch,) = make_trainer(tmp_path, precision="bf16-true").predict(Own(tmp_path), loader(2))
    assert batch.dtype is torch.bfloat16


def test_without_hooks_a_step_has_no_transfer(tmp_path):
    trainer = make_trainer(tmp_path)
    found = []

    class Asking(Recorder):
        def on_train_start(self):
            found.append(self.trainer.make_transfer())

    trainer.fit(Asking(tmp_path), loader(2))
    assert found == [None]
