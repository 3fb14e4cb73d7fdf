"""Small models of every kind that a strategy may meet, and the data they are trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from core_testing.mixture import Mixture, mixture_of
from core_testing.trainer_names import Module

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core_testing.cases import Case

NUM_FEATURES = 6
GLOBAL_BATCH_SIZE = 8
NUM_SAMPLES = 48
_WIDTH = 8


class Perceptron(Module):
    """Two layers. The others are changes of it."""

    tensor_parallel_plan: Mapping[str, str] = {
        "first": "rowwise_split_input",
        "last": "colwise_gather_output",
    }

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.case = case
        self.first = nn.Linear(NUM_FEATURES, _WIDTH)
        self.last = nn.Linear(_WIDTH, 2)
        self.mixture = mixture_of(case)
        self.add_parts()
        self.to(case.dtype)
        self.formats: set[torch.dtype] = set()

    def add_parts(self) -> None:
        """Add the parts that a subclass has besides."""

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, 6) to (batch, 2), or (batch, length, 6) to (batch, length, 2)."""
        hidden = self.attended(self._note_format(self.first(x)))
        if self.mixture is not None:
            hidden = self.mixture(hidden)
        return self.last(torch.tanh(self.between(hidden)))  # type: ignore[no-any-return]

    def pipeline(self) -> list[Callable[..., Any]]:
        """The parts in order, of which `forward` is made, for strategies that cut a model into
        stages.
        """
        return [self.first, self._note_format, self.attended, self.between, torch.tanh, self.last]

    def _note_format(self, hidden: Tensor) -> Tensor:
        # What the layer has computed in shows how a precision really works, whatever the dtype of
        # weights.
        if not hidden.is_meta:  # a strategy has looked at shapes
            self.formats.add(hidden.dtype)
        return hidden

    def attended(self, hidden: Tensor) -> Tensor:
        """Of a sequence, each position with those before it: causal attention of two heads."""
        if self.case.length is None:
            return hidden
        heads = hidden.unflatten(-1, (2, -1)).transpose(1, 2)
        seen = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return hidden + seen.transpose(1, 2).flatten(2)

    def between(self, hidden: Tensor) -> Tensor:
        """Transform the first layer's outputs, shape (batch, 8), or (batch, length, 8)."""
        return hidden

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The mean squared error."""
        inputs, targets = batch
        return functional.mse_loss(self(inputs), targets.to(inputs.dtype))

    def configure_optimizers(self) -> Any:
        """The optimizer and scheduler of the case."""
        optimizer = self.case.optimizer(self)
        if self.case.scheduler is None:
            return optimizer
        # Not a divisor of the step at which runs are stopped: who forgets the position changes the
        # rate elsewhere.
        period = 1 if self.case.scheduler == "epoch" else 3
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=period, gamma=0.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": self.case.scheduler},
        }


class Validated(Perceptron):
    """Logs its error."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """The mean squared error of the batch."""
        inputs, targets = batch
        self.log("error", functional.mse_loss(self(inputs), targets.to(inputs.dtype)))


class Bounded(Validated):
    """A network whose outputs for sequences are no view, of which torch's fully_shard would
    warn.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, length, 6) to (batch, length, 2)."""
        return torch.tanh(super().forward(x))

    def pipeline(self) -> list[Callable[..., Any]]:
        """The bound is a part."""
        return [*super().pipeline(), torch.tanh]


class Tied(Perceptron):
    """One weight in two places."""

    def add_parts(self) -> None:
        """A layer that shares the weight of another."""
        self.twins = nn.ModuleList([nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)])
        self.twins[1].weight = self.twins[0].weight

    def between(self, hidden: Tensor) -> Tensor:
        """Apply both layers."""
        return self.twins[1](torch.tanh(self.twins[0](hidden)))  # type: ignore[no-any-return]

    def pipeline(self) -> list[Callable[..., Any]]:
        """Both layers are parts."""
        return [
            self.first,
            self._note_format,
            self.attended,
            self.twins[0],
            torch.tanh,
            self.twins[1],
            torch.tanh,
            self.last,
        ]


class Frozen(Perceptron):
    """A network with some weights that aren't trained."""

    def add_parts(self) -> None:
        """Freeze the first layer."""
        self.first.requires_grad_(False)


class Thawed(Frozen):
    """The first layer is frozen, and trained from the second epoch on."""

    def on_train_epoch_start(self) -> None:
        """Unfreeze between two epochs, as callbacks for fine-tuning do."""
        if self.trainer.current_epoch == 1:
            self.first.requires_grad_(True)


class ThawedAmidst(Frozen):
    """The first layer is frozen, and trained from the third batch on."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Unfreeze between two steps."""
        if batch_idx == 2:
            self.first.requires_grad_(True)


class Stopped(Perceptron):
    """The first layer is trained in the first epoch, and frozen from the second on."""

    def on_train_epoch_start(self) -> None:
        """Freeze between two epochs."""
        if self.trainer.current_epoch == 1:
            self.first.requires_grad_(False)


class StoppedAmidst(Perceptron):
    """The first layer is trained until the third batch, and frozen from there on."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Freeze between two steps."""
        if batch_idx == 2:
            self.first.requires_grad_(False)


class LooksUp(Perceptron):
    """A network that adds a row of a table to a layer's outputs: the table's gradient is sparse,
    the layer's dense.
    """

    def add_parts(self) -> None:
        """The table."""
        self.table = nn.Embedding(3, _WIDTH, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, 6) to (batch, 2)."""
        rows = (x[..., 0] > 0).long() + (x[..., 1] > 0).long()
        return self.last(torch.tanh(self.first(x) + self.table(rows)))  # type: ignore[no-any-return]


class Hooked(Perceptron):
    """A network with a hook on a weight, which lets some of its rows learn."""

    def add_parts(self) -> None:
        """The hook."""
        self.first.weight.register_hook(_mask_rows)


def _mask_rows(gradient: Tensor) -> Tensor:
    return (
        gradient * (torch.arange(len(gradient), device=gradient.device) % 2).to(gradient)[:, None]
    )


class Unused(Perceptron):
    """A network with some weights that take no part in the loss."""

    def add_parts(self) -> None:
        """A layer that is never called."""
        self.aside = nn.Linear(_WIDTH, _WIDTH)


class Normalized(Perceptron):
    """A network with batch statistics: buffers that training changes."""

    def add_parts(self) -> None:
        """The normalization."""
        self.normalization = nn.BatchNorm1d(_WIDTH)

    def between(self, hidden: Tensor) -> Tensor:
        """Normalize."""
        return self.normalization(hidden)  # type: ignore[no-any-return]

    def pipeline(self) -> list[Callable[..., Any]]:
        """The normalization is a part."""
        return [
            self.first,
            self._note_format,
            self.attended,
            self.normalization,
            torch.tanh,
            self.last,
        ]


class Shifted(Perceptron):
    """A network with a buffer that the outputs depend on, and that nothing changes."""

    shift: Tensor

    def add_parts(self) -> None:
        """The buffer."""
        self.register_buffer("shift", torch.linspace(-1, 1, _WIDTH))

    def between(self, hidden: Tensor) -> Tensor:
        """Shift."""
        return hidden + self.shift


class Assorted(Normalized):
    """A network with statistics in buffers, weights that are trained, and weights that aren't."""

    def add_parts(self) -> None:
        """Normalize, and freeze the last bias."""
        super().add_parts()
        self.last.bias.requires_grad_(False)


class Noisy(Perceptron):
    """Draws random numbers in every step."""

    def between(self, hidden: Tensor) -> Tensor:
        """Dropout."""
        return functional.dropout(hidden, 0.3, self.training)


class Manual(Perceptron):
    """Runs backward and the optimizer itself."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """One step by hand."""
        loss = super().training_step(batch, batch_idx)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss.detach()


class Adversarial(Module):
    """Two networks with an optimizer each, and two backwards in one step that each use a part of
    the weights.
    """

    tensor_parallel_plan: Mapping[str, str] = {
        "generator": "colwise_gather_output",
        "critic": "rowwise_split_input",
    }

    automatic_optimization = False

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.case = case
        self.generator: nn.Module = nn.Linear(NUM_FEATURES, NUM_FEATURES)
        self.critic: nn.Module = nn.Linear(NUM_FEATURES, 1)
        if case.num_experts:
            self.critic = nn.Sequential(
                nn.Linear(NUM_FEATURES, _WIDTH), Mixture(case.num_experts), nn.Linear(_WIDTH, 1)
            )
        self.to(case.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, 6) to (batch, 1)."""
        return self.critic(self.generator(x))  # type: ignore[no-any-return]

    def pipeline(self) -> list[Callable[..., Any]]:
        """The two networks."""
        return [self.generator, self.critic]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The critic's step, then the generator's."""
        inputs = batch[0]
        generate, judge = self.optimizers()
        loss = (self.critic(self.generator(inputs).detach()) - self.critic(inputs)).square().mean()
        judge.zero_grad()
        self.manual_backward(loss)
        judge.step()
        generate.zero_grad()
        self.manual_backward((self.critic(self.generator(inputs)) - 1).square().mean())
        generate.step()
        return loss.detach()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> Any:
        """One each."""
        return [
            torch.optim.SGD(self.generator.parameters(), lr=0.05, momentum=0.9),
            torch.optim.Adam(self.critic.parameters(), lr=0.01),
        ]


def make_data(case: Case, num_copies: int = 1) -> TensorDataset:
    """Inputs, shape (48, 6), and targets, shape (48, 2); of sequences (48, length, 6) and (48,
    length, 2).

    Args:
        case: says whether every batch consists of equal parts, so that each has the statistics of
            the whole.
        num_copies: of the part in the batch.
    """
    generator = torch.Generator().manual_seed(7)
    shape = (NUM_FEATURES,) if case.length is None else (case.length, NUM_FEATURES)
    inputs = torch.randn(NUM_SAMPLES, *shape, generator=generator, dtype=torch.float64).to(
        case.dtype
    )
    if case.equal_shares:
        parts = inputs.view(-1, GLOBAL_BATCH_SIZE, *shape)[:, : GLOBAL_BATCH_SIZE // num_copies]
        inputs = torch.cat([parts] * num_copies, 1).reshape(NUM_SAMPLES, *shape)
    targets = torch.stack([inputs.sum(-1).sin(), inputs.prod(-1)], dim=-1)
    return TensorDataset(inputs, targets)


def make_loader(case: Case, data_parallel_size: int, num_copies: int = 1) -> DataLoader[Any]:
    """Batches of one rank, of which `data_parallel_size` together make the batch of one device."""
    data = make_data(case, num_copies)
    return DataLoader(
        data, batch_size=GLOBAL_BATCH_SIZE // data_parallel_size, shuffle=case.shuffle
    )


def make_batches_of(
    case: Case, data_parallel_size: int, multiples: tuple[int, ...], size_of_last: int
) -> Any:
    """A loader like `make_loader`'s, of sequences whose length changes from batch to batch.

    Args:
        case: as there.
        data_parallel_size: as there.
        multiples: each batch's length, in the sequence length of the case, or in two positions.
        size_of_last: number of samples of the last batch, of all shares together.
    """
    length = case.length or 2
    inputs, targets = make_data(replace(case, length=length * max(multiples))).tensors
    num_samples = GLOBAL_BATCH_SIZE * (len(multiples) - 1) + size_of_last
    ends = [length * multiples[number // GLOBAL_BATCH_SIZE] for number in range(num_samples)]
    samples: Any = [
        (inputs[number, :end], targets[number, :end]) for number, end in enumerate(ends)
    ]
    return DataLoader(samples, batch_size=GLOBAL_BATCH_SIZE // data_parallel_size)
