import pytest
import torch
from recording import (
    Numbers,
    Recorder,
    SaveAt,
    Validating,
    fit,
    forget,
    loader,
    make_trainer,
    on_two,
    seen,
    stream,
)
from torch.utils.data import DataLoader, IterableDataset

from core import CheckpointError, ConfigurationError, DataModule, WorkerError
from core.callbacks import LambdaCallback


def test_a_save_in_the_last_short_window_is_made_at_once(tmp_path):
    there = []
    looks = LambdaCallback(
        on_train_batch_end=lambda *_: there.append((tmp_path / "end.ckpt").exists())
    )
    callbacks = [SaveAt(tmp_path / "end.ckpt", 3), looks]
    fit(tmp_path, stream(3, 1), accumulate_grad_batches=2, callbacks=callbacks)
    assert there == [False, False, True]


def test_a_generator_is_empty_in_the_second_epoch(tmp_path):
    generator = (torch.tensor([number]) for number in range(2))
    with pytest.raises(
        ConfigurationError,
        match=r"\(generator\) gave no batch in this epoch: .* that can be read once",
    ):
        fit(tmp_path, generator, max_epochs=2, limit_train_batches=2)
    assert seen(tmp_path) == [[0], [1]]


def test_an_empty_training_loader(tmp_path):
    message = (
        "The training loader gives no batch: its data set is empty, or drop_last dropped all of it"
    )
    with pytest.raises(ConfigurationError, match=message):
        fit(tmp_path, loader(1, 8, drop_last=True))
    with pytest.raises(ConfigurationError, match="or limit_train_batches=0 left none"):
        fit(tmp_path, loader(), limit_train_batches=0)


def test_an_empty_evaluation_loader(tmp_path):
    with pytest.raises(
        ConfigurationError, match="The validation loader gives no batch: its data set is empty"
    ):
        make_trainer(tmp_path).validate(Validating(tmp_path), loader(0))
    with pytest.raises(
        ConfigurationError, match="The validation loader gives no batch: its data set is empty"
    ):
        make_trainer(tmp_path).validate(Validating(tmp_path), {})
    with pytest.raises(ConfigurationError, match="The test loader gives no batch"):
        make_trainer(tmp_path).test(Recorder(tmp_path), loader(0))
    with pytest.warns(
        UserWarning, match=r"A test loader \(generator\) gave no batch: it is empty, or an iterator"
    ):
        make_trainer(tmp_path).test(Recorder(tmp_path), (number for number in ()))
    assert (
        make_trainer(tmp_path, limit_val_batches=0).validate(Validating(tmp_path), loader(0)) == []
    )


@pytest.mark.parametrize("given", [[], (), {}, loader(0), [loader(0), loader(0)], {"a": loader(0)}])
@pytest.mark.parametrize("through", ["argument", "hook"])
def test_training_goes_on_without_validation_data(tmp_path, given, through):
    class WithTraining(DataModule):
        def train_dataloader(self):
            return loader()

    class WithHook(Validating):
        def val_dataloader(self):
            return given

    trainer = make_trainer(
        tmp_path, max_epochs=3, reload_dataloaders_every_n_epochs=int(through == "hook")
    )
    passed = (Validating(tmp_path), loader(), given)
    arguments = passed if through == "argument" else (WithHook(tmp_path), WithTraining())
    message = (
        "The validation loader gives no batch: its data set is empty, .* It is left out of "
        "validation."
    )
    with pytest.warns(UserWarning, match=message) as caught:
        trainer.fit(*arguments)
    assert len(caught) == 1
    assert (trainer.global_step, seen(tmp_path, "validation")) == (9, [])


def test_an_empty_one_of_several_validation_loaders(tmp_path):
    trainer = make_trainer(tmp_path, limit_val_batches=0.5, num_sanity_val_steps=2)
    with pytest.warns(UserWarning, match="It is left out of validation"):
        trainer.fit(Validating(tmp_path), loader(), [loader(0), loader(8)])
    assert seen(tmp_path, "validation") == [[0, 1], [2, 3]] * 2
    assert set(trainer.callback_metrics) == {"total/dataloader_idx_1"}


def test_a_training_loader_in_evaluation(tmp_path):
    with pytest.warns(
        UserWarning, match="The prediction loader shuffles. Is it the training loader"
    ):
        make_trainer(tmp_path).predict(Recorder(tmp_path), loader(shuffle=True))


def test_shares_of_different_lengths_are_refused(tmp_path):
    class RankStream(IterableDataset):
        """Shares itself out: as many samples as `counts` says for the rank."""

        def __init__(self, *counts):
            self.counts = counts

        def __len__(self):
            return self.counts[torch.distributed.get_rank()]

        def __iter__(self):
            rank = torch.distributed.get_rank()
            return iter(range(100 * rank, 100 * rank + self.counts[rank]))

    data = DataLoader(RankStream(4, 2), batch_size=2)
    message = (
        "different number of batches on each rank: 2 on rank 0, 1 on rank 1.*or pass "
        "limit_train_batches=1"
    )
    options = {"use_distributed_sampler": False}
    with pytest.raises(WorkerError, match=message):
        on_two(tmp_path, lambda trainer: trainer.fit(Recorder(tmp_path), data), **options)
    on_two(
        tmp_path,
        lambda trainer: trainer.fit(Recorder(tmp_path), data),
        **options,
        limit_train_batches=1,
    )
    assert [seen(tmp_path, rank=rank) for rank in (0, 1)] == [[[0, 1]], [[100, 101]]]


class Stateful:
    """Orders its data by itself, and knows where it is, as torchdata's StatefulDataLoader does."""

    def __init__(self, num_batches=4):
        self.position, self.num_batches = 0, num_batches

    def __iter__(self):
        while self.position < self.num_batches:
            self.position += 1
            yield torch.tensor([self.position, self._rank()])
        self.position = 0

    def _rank(self):
        return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0

    def state_dict(self):
        return {"position": self.position, "rank": self._rank()}

    def load_state_dict(self, state):
        assert state["rank"] == self._rank()
        self.position = state["position"]


@pytest.mark.parametrize("window", [1, 2])
def test_a_loaders_own_state_is_used(tmp_path, window):
    path = tmp_path / "middle.ckpt"
    options = {"max_epochs": 2, "accumulate_grad_batches": window}
    fit(tmp_path, Stateful(), callbacks=SaveAt(path, 2), **options)
    whole = seen(tmp_path)
    assert len(whole) == 8
    forget(tmp_path)
    resumed = Stateful()
    fit(tmp_path, resumed, ckpt_path=path, **options)
    assert seen(tmp_path) == whole[2:]


def test_an_epoch_begins_at_its_first_batch_whatever_the_state(tmp_path):
    path = tmp_path / "end.ckpt"
    saves = LambdaCallback(on_train_epoch_end=lambda trainer, module: trainer.save_checkpoint(path))
    fit(tmp_path, Stateful(), callbacks=saves)
    forget(tmp_path)
    fit(tmp_path, Stateful(), ckpt_path=path, max_epochs=2)
    assert seen(tmp_path) == [[1, 0], [2, 0], [3, 0], [4, 0]]


def test_every_rank_has_its_own_state_back(tmp_path):
    path = tmp_path / "middle.ckpt"
    options = {"use_distributed_sampler": False}
    on_two(
        tmp_path,
        lambda trainer: trainer.fit(Recorder(tmp_path), Stateful()),
        callbacks=SaveAt(path, 2),
        **options,
    )
    forget(tmp_path)
    on_two(
        tmp_path,
        lambda trainer: trainer.fit(Recorder(tmp_path), Stateful(), ckpt_path=path),
        **options,
    )
    assert [seen(tmp_path, rank=rank) for rank in (0, 1)] == [[[3, 0], [4, 0]], [[3, 1], [4, 1]]]
    with pytest.raises(
        CheckpointError,
        match="a state of its own, which was saved on 2 ranks and can't be divided among",
    ):
        fit(tmp_path, Stateful(), ckpt_path=path, **options)


def test_a_loader_that_does_not_take_its_state_is_named(tmp_path):
    class Other(Stateful):
        """Refuses when it is read, as torchdata's StatefulDataLoader does with another number of
        workers.
        """

        def __iter__(self):
            assert self.position == 0, "no key '_snapshot'"
            return super().__iter__()

    path = tmp_path / "middle.ckpt"
    fit(tmp_path, Stateful(), callbacks=SaveAt(path, 2))
    cure = (
        "Other doesn't take the state that it saved.*as many workers. It says: no key '_snapshot'"
    )
    with pytest.raises(CheckpointError, match=cure):
        fit(tmp_path, Other(), ckpt_path=path)


def test_another_kind_of_loader_is_refused(tmp_path):
    path = tmp_path / "middle.ckpt"
    fit(tmp_path, Stateful(), callbacks=SaveAt(path, 2))
    with pytest.raises(
        CheckpointError,
        match="a loader that orders its data itself, and this is a DataLoader with a sa",
    ):
        fit(tmp_path, loader(), ckpt_path=path)


class Reloading(DataModule):
    def __init__(self):
        self.asked = []

    def train_dataloader(self):
        self.asked.append(self.trainer.current_epoch)
        return loader(4, start=100 * self.trainer.current_epoch, shuffle=True)


def test_loaders_are_made_anew(tmp_path):
    data = Reloading()
    make_trainer(tmp_path, max_epochs=5, reload_dataloaders_every_n_epochs=2).fit(
        Recorder(tmp_path), datamodule=data
    )
    assert data.asked == [0, 2, 4]
    assert [min(batch) // 100 for batch in seen(tmp_path)[::2]] == [0, 0, 2, 2, 4]


def test_a_resumed_run_has_the_loaders_of_its_epoch(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "middle.ckpt"
    options = {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1}
    make_trainer(tmp_path, callbacks=SaveAt(path, 3), **options).fit(
        Recorder(tmp_path), datamodule=Reloading()
    )
    whole = seen(tmp_path)
    forget(tmp_path)
    torch.manual_seed(1)
    make_trainer(tmp_path, **options).fit(
        Recorder(tmp_path), datamodule=Reloading(), ckpt_path=path
    )
    assert seen(tmp_path) == whole[3:]


def test_passed_loaders_cannot_be_made_anew(tmp_path):
    message = (
        "reload_dataloaders_every_n_epochs=1 asks hooks for new loaders, and "
        "train_dataloaders were passed"
    )
    with pytest.raises(ConfigurationError, match=message):
        fit(tmp_path, loader(), reload_dataloaders_every_n_epochs=1)


def test_estimated_stepping_batches(tmp_path):
    found = []

    class Scheduled(Recorder):
        def configure_optimizers(self):
            found.append(self.trainer.estimated_stepping_batches)
            return super().configure_optimizers()

    for options, data in [
        ({"max_epochs": 3, "accumulate_grad_batches": 2}, loader(5, 1)),
        ({"max_epochs": 3, "max_steps": 4}, loader(5, 1)),
        ({"max_epochs": -1, "max_steps": 2}, stream()),
        ({"limit_train_batches": 1}, loader()),
    ]:
        make_trainer(tmp_path, **options).fit(Scheduled(tmp_path), data)
    assert found == [9, 4, 2, 1]
    on_two(tmp_path, lambda trainer: trainer.fit(Scheduled(tmp_path), loader(8)), max_epochs=2)
    assert found[-2:] == [4, 4]


def test_numbers_of_batches_and_loaders_can_be_asked_for(tmp_path):
    trainer = make_trainer(tmp_path, num_sanity_val_steps=2, limit_val_batches=3)
    assert (trainer.train_dataloader, trainer.val_dataloaders, trainer.num_training_batches) == (
        None,
        None,
        0,
    )
    trainer.fit(Validating(tmp_path), loader(), [loader(2), loader(20)])
    assert (trainer.num_training_batches, trainer.num_val_batches) == (3, [1, 3])
    assert trainer.num_sanity_val_batches == [1, 2]
    assert isinstance(trainer.train_dataloader.dataset, Numbers)
    trainer.test(Recorder(tmp_path), loader(4))
    assert trainer.num_test_batches == [2]
    assert len(trainer.test_dataloaders) == 2
