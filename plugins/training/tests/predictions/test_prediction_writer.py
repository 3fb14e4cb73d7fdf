import pytest
import torch

from core import ConfigurationError
from core.callbacks import BasePredictionWriter
from support.tiny import Tiny, loader, make_trainer


class Writer(BasePredictionWriter):
    """Writes a file for each batch, and one for everything, with the rank in its name."""

    def __init__(self, folder, write_interval):
        super().__init__(write_interval)
        self.folder = folder

    def write_on_batch_end(
        self, trainer, module, prediction, batch_indices, batch, batch_idx, dataloader_idx
    ):
        name = f"{dataloader_idx}-{batch_idx}-rank{trainer.global_rank}.pt"
        saved = {"prediction": prediction, "indices": batch_indices, "batch": batch}
        torch.save(saved, self.folder / name)

    def write_on_epoch_end(self, trainer, module, predictions, batch_indices):
        saved = {"predictions": list(predictions), "indices": list(batch_indices)}
        torch.save(saved, self.folder / f"all-rank{trainer.global_rank}.pt")


def files(folder):
    return {path.stem: torch.load(path) for path in sorted(folder.glob("*.pt"))}


def expected(num_samples=8):
    return Tiny()(loader(num_samples).dataset.tensors[0])


class Predicting(Tiny):
    def predict_step(self, batch, batch_idx):
        return self(batch[0])


def test_each_batch(tmp_path):
    trainer = make_trainer(tmp_path, Writer(tmp_path, "batch"))
    assert trainer.predict(Predicting(), [loader(), loader(3)], return_predictions=False) is None
    written = files(tmp_path)
    indices = {name: each["indices"] for name, each in written.items()}
    first = {f"0-{index}-rank0": [2 * index, 2 * index + 1] for index in range(4)}
    assert indices == {**first, "1-0-rank0": [0, 1], "1-1-rank0": [2]}
    assert torch.equal(written["0-3-rank0"]["prediction"], expected()[6:])
    assert torch.equal(written["0-3-rank0"]["batch"][0], loader().dataset.tensors[0][6:])


@pytest.mark.parametrize("interval", ["epoch", "batch_and_epoch"])
def test_all_at_the_end(tmp_path, interval):
    make_trainer(tmp_path, Writer(tmp_path, interval)).predict(Predicting(), [loader(), loader(3)])
    written = files(tmp_path)
    everything = written.pop("all-rank0")
    assert torch.equal(torch.cat(everything["predictions"][0]), expected())
    assert [len(predictions) for predictions in everything["predictions"]] == [4, 2]
    assert everything["indices"] == [[[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 1], [2]]]
    assert len(written) == (6 if interval == "batch_and_epoch" else 0)


def test_a_loader_without_indices(tmp_path):
    make_trainer(tmp_path, Writer(tmp_path, "batch")).predict(Predicting(), [[torch.ones(1, 2)]])
    assert files(tmp_path)["0-0-rank0"]["indices"] is None


def test_every_rank_writes_its_share(tmp_path):
    trainer = make_trainer(tmp_path, Writer(tmp_path, "batch"), strategy="ddp_fork", devices=2)
    trainer.predict(Predicting(), loader())
    whole = torch.empty(8, 1)
    written = files(tmp_path)
    assert sorted(written) == ["0-0-rank0", "0-0-rank1", "0-1-rank0", "0-1-rank1"]
    for part in written.values():
        whole[part["indices"]] = part["prediction"]
    assert torch.allclose(whole, expected())


def test_what_is_missing(tmp_path):
    class Half(BasePredictionWriter):
        def write_on_batch_end(self, *_):
            pass

    with pytest.raises(
        ConfigurationError, match=r"Half\(write_interval='epoch'\) has no write_on_epoch_end\(\)"
    ):
        Half("epoch")
    with pytest.raises(
        ConfigurationError, match=r"write_interval='step'\): expected 'batch' or 'epoch'"
    ):
        Half("step")
