"""What would train wrong without a word is refused by name, or computed as on one device."""

from functools import partial
from unittest import mock

import pytest
import torch
from language import ALONE, Step
from language import loader as words
from pipelines import Net as Stages
from pipelines import Seen
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from core import CoreError
from core.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy
from core_fsdp import same_batches
from core_parallel import MeshParallelStrategy
from core_parallel.microbatches import pieces
from core_testing.ranks import Backend

_on_two = Backend(MeshParallelStrategy, "cpu", 2, 1)


def _failure(rank, strategy, module, *loaders):
    """The message with which a fit ended."""
    trainer = rank.trainer(
        strategy, max_epochs=1, max_steps=4, limit_val_batches=1.0 if len(loaders) > 1 else 0
    )
    try:
        trainer.fit(module, *loaders)
    except CoreError as error:
        return str(error)
    return None


@pytest.mark.slow
def test_ranks_that_share_their_data_have_the_same():
    class _Validates(Step):
        def validation_step(self, batch, batch_idx):
            self.log("error", self.compute(batch[0]).square().mean())

    class _Late(Dataset[Tensor]):
        """Samples of which those of the third batch are another rank's own."""

        def __init__(self, rank):
            self.rank = rank

        def __len__(self):
            return 32

        def __getitem__(self, index):
            return [torch.full((9,), 2 + self.rank * (index >= 16)), "text"]

    def own_words(rank):
        draws = torch.Generator().manual_seed(rank.number)
        return DataLoader(TensorDataset(torch.randint(0, 11, (16, 9), generator=draws)), 8)

    def with_other_batches(rank):
        fail, alike = partial(_failure, rank), words(8, 16)
        cut = partial(MeshParallelStrategy, tensor=2)
        inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        targets = DataLoader(TensorDataset(inputs, inputs[:, :2] + rank.number), 8)
        scheduled = MeshParallelStrategy(pipeline=2, schedule="1F1B")
        groups = ModelParallelStrategy(tensor_parallel_size=2, data_parallel_size=1)
        with mock.patch.object(same_batches, "EVERY", 2):
            late = fail(cut(), Step(), DataLoader(_Late(rank.number), 8))
        named = [
            (
                "call 0 of training_step",
                0,
                fail(MeshParallelStrategy(context=2), Step(), own_words(rank)),
            ),
            ("call 0 of validation_step", 0, fail(cut(), _Validates(), alike, own_words(rank))),
            ("call 0 of training_step", 1, fail(scheduled, Stages(0.0), targets)),
            ("call 0 of training_step", 0, fail(groups, Step(), own_words(rank))),
            ("call 2 of training_step", 0, late),
        ]
        trained = (
            fail(cut(), _Validates(), alike, alike),
            fail(MeshParallelStrategy(data=2), Step(), own_words(rank)),
        )
        return named, trained

    for named, trained in _on_two.run(with_other_batches):
        for place, leaf, message in named:
            assert message is not None
            assert message.startswith(
                f"Ranks 0 and 1 share their data, and were given different batches in {place}"
            )
            assert f"number {leaf}, a Tensor of shape" in message
            assert "seed_everything" in message
        assert trained == (None, None)


@pytest.mark.slow
def test_hooks_of_parameters_are_refused_by_name_where_they_see_no_whole_gradient():
    def _step(parameter):
        with torch.no_grad():
            parameter.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None

    class _Hooked(Step):
        """A parameter with a hook."""

        def __init__(self, method):
            super().__init__()
            mask = (torch.arange(11) > 5).double()[:, None]
            hook = (lambda gradient: gradient * mask) if method == "register_hook" else _step
            getattr(self.net.start.embed.weight, method)(hook)

    class _HookedLater(Step):
        def configure_optimizers(self):
            self.net.start.embed.weight.register_hook(lambda gradient: gradient / 2)
            return super().configure_optimizers()

    class _HookedAtThird(Step):
        """A parameter with a hook from the third batch on."""

        def on_train_batch_start(self, batch, batch_idx):
            if batch_idx == 2:
                self.net.start.embed.weight.register_hook(lambda gradient: gradient / 2)

    def with_hooks(rank):
        made = {
            "fsdp": FSDPStrategy,
            "model parallel": partial(
                ModelParallelStrategy, tensor_parallel_size=2, data_parallel_size=1
            ),
            **{
                name: partial(MeshParallelStrategy, **{name: 2})
                for name in ("tensor", "shard", "context", "data")
            },
            "ddp": DDPStrategy,
        }
        found = {}
        for name, make in made.items():
            for method in ("register_hook", "register_post_accumulate_grad_hook"):
                found[f"{name} {method}"] = _failure(rank, make(), _Hooked(method), words(8, 16))
        found["fsdp later"] = _failure(rank, FSDPStrategy(), _HookedLater(), words(8, 16))
        for name in ("fsdp", "tensor", "shard", "context"):
            found[f"{name} at the third batch"] = _failure(
                rank, made[name](), _HookedAtThird(), words(4, 32)
            )
        return found

    found = _on_two.run(with_hooks)[0]
    # a gradient of a rank's own data, as under torch's DDP
    carried = {"ddp register_hook", "data register_hook"}
    assert {name for name, message in found.items() if message is None} == carried
    for name, message in found.items():
        assert message is None or message.startswith("'net.start.embed.weight' of"), (name, message)


class _Around(Step):
    """The step calls what is in the model."""

    def compute(self, words):
        x = self.net.start.embed(words)
        for block in self.net.blocks:
            x = block(x)
        return self.net.head(x)


def test_context_that_is_not_applied_or_that_a_hook_looks_into_is_refused():
    class _Kept(Step):
        """A hook keeps hidden states beside the model, and the step uses them."""

        def __init__(self, where):
            super().__init__()
            self.hidden = []
            kept = []
            self.of_hook = self.hidden if where == "module" else None
            self.read = lambda: (self.hidden or kept).pop()

            def keep(module, given, result):
                (self.hidden if where == "module" else kept).append(result)

            self.net.blocks[0].register_forward_hook(keep)

        def training_step(self, batch, batch_idx):
            found = super().training_step(batch, batch_idx)
            return found["loss"] + self.read().square().mean()

    def with_context(rank):
        modules = (_Around(), _Kept("module"), _Kept("closure"))
        return [
            _failure(rank, MeshParallelStrategy(context=2), one, words(8, 16)) for one in modules
        ]

    around, *kept = _on_two.run(with_context)[0]
    assert around is not None
    assert around.startswith(
        "The step called neither _Around nor Net, whose sequence context= cuts"
    )
    assert all(one is not None and "keeps a tensor with a graph" in one for one in kept), kept


class _TimeFirst(Stages):
    """Recurrent layers on (time, batch), and a mask between positions."""

    def __init__(self):
        super().__init__(0.0)
        del self.embed, self.blocks, self.head, self.temperature
        self.embed, self.first, self.second = nn.Embedding(5, 4), nn.LSTM(4, 4), nn.LSTM(4, 4)
        self.head = nn.Linear(4, 5)
        self.double()

    @staticmethod
    def result(given):
        return given[0]

    def pipeline(self):
        return [self.embed, self.first, self.result, self.second, self.result, self.head]

    def forward(self, x):
        return self.head(self.second(self.first(self.embed(x))[0])[0])

    def training_step(self, batch, batch_idx):
        loss = functional.cross_entropy(self(batch[0].t()).flatten(0, 1), batch[0].t().flatten())
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss


class _Masked(Stages):
    """A mask between positions, as many as there are samples, is in the batch."""

    def __init__(self):
        super().__init__(0.0)

    def training_step(self, batch, batch_idx):
        inputs, targets, mask = batch
        loss = (torch.softmax(mask, -1) @ self(inputs) - targets).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss


def _masked_batches():
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return DataLoader([[inputs, inputs[:, :2], _MASK]] * 2, batch_size=None)


_MASK = torch.full((4, 4), -torch.inf).double().triu(1)


def _batches_of_time(length):
    return DataLoader(
        TensorDataset(
            torch.randint(0, 5, (16, length), generator=torch.Generator().manual_seed(1))
        ),
        8,
    )


_AXES = {
    "time": (_TimeFirst, partial(_batches_of_time, 6)),
    "as long as the batch": (_TimeFirst, partial(_batches_of_time, 8)),
    "mask": (_Masked, _masked_batches),
}


@pytest.mark.slow
@pytest.mark.numbers
def test_samples_are_not_the_dim_that_is_as_long_by_accident():
    def losses(rank, *, alone):
        found = {}
        for name, (make, batches) in _AXES.items():
            for options in [{}] if alone else [{}, {"microbatches": 2, "schedule": "1F1B"}]:
                seen = Seen()
                strategy = None if alone else MeshParallelStrategy(pipeline=2, **options)
                trainer = rank.trainer(strategy, max_epochs=1, callbacks=seen, limit_val_batches=0)
                trainer.fit(make(), batches())
                found[f"{name} {options}"] = seen.steps
        return found

    expected = ALONE.run(partial(losses, alone=True))[0]
    for name, steps in _on_two.run(partial(losses, alone=False))[0].items():
        right = expected[f"{name.partition(' {')[0]} {{}}"]
        assert steps == pytest.approx(right, abs=1e-12), name


def test_a_mask_between_as_many_positions_as_samples_is_none_of_samples():
    samples = torch.ones(4, 6)
    assert pieces.is_unclear((samples, {"mask": _MASK}), None, is_chosen=True)
    assert pieces.is_unclear((samples, _MASK == 0), None, is_chosen=True)
    assert not pieces.is_unclear((samples, _MASK.exp()), None, is_chosen=True)
