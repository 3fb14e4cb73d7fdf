"""The training of the equality tests: the same under every strategy."""

from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Fabric, Module, Trainer

GLOBAL_BATCH_SIZE = 8
NUM_STEPS = 20
PRECISIONS = {torch.float64: "64-true", torch.float32: "32-true"}
QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
}


@dataclass(frozen=True)
class Case:
    """One way to train, in which all strategies must agree."""

    dtype: torch.dtype = torch.float64
    optimizer: str = "adamw"
    accumulate: int = 1
    clip: float | None = None
    clip_algorithm: str = "norm"
    tied: bool = False
    frozen: bool = False
    loop: str = "trainer"
    meta: bool = False
    recurrent: bool = False


CASES = {
    "plain": Case(),
    "sgd_fp32": Case(dtype=torch.float32, optimizer="sgd"),
    "clipped": Case(clip=0.02),
    "clipped_by_value": Case(clip=0.003, clip_algorithm="value"),
    "accumulated": Case(accumulate=2, clip=0.02),
    "tied": Case(tied=True, clip=0.02),
    "frozen": Case(frozen=True),
    "fused": Case(optimizer="fused"),
    "foreach": Case(optimizer="foreach", clip=0.02),
    "muon": Case(optimizer="muon", accumulate=2, clip=0.02),
    "fabric": Case(loop="fabric", clip=0.02, tied=True),
    "fabric_accumulated": Case(loop="fabric", accumulate=2, frozen=True),
    "meta": Case(meta=True, tied=True),
    "recurrent": Case(meta=True, recurrent=True),
}


class Block(nn.Module):
    """A residual layer with a norm and a buffer, whose width isn't a multiple of the number of
    ranks.
    """

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.num_calls += 1
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class RecurrentBlock(Block):
    """One with a recurrent layer, whose parameters torch replaces in its own way."""

    def __init__(self):
        super().__init__()
        self.memory = nn.LSTM(6, 6, batch_first=True)

    def forward(self, x):
        return super().forward(x + self.memory(x.reshape(-1, 2, 6))[0].reshape(x.shape))


class Net(Module):
    """Predicts tokens; cut over the tensor axis where there is one."""

    def __init__(self, case):
        super().__init__()
        self.case = case
        if not case.meta:
            self.build()

    def build(self):
        torch.manual_seed(3)
        self.embedding = nn.Embedding(13, 6)
        self.blocks = nn.ModuleList([RecurrentBlock() if self.case.recurrent else Block(), Block()])
        self.head = nn.Linear(6, 13, bias=False)
        if self.case.tied:
            self.head.weight = self.embedding.weight
        self.blocks[0].requires_grad_(not self.case.frozen)
        self.register_buffer("scale", torch.tensor(1.5))

    def configure_model(self):
        if self.case.meta and not hasattr(self, "blocks"):
            with torch.device("meta" if self.device_mesh is not None else "cpu"):
                self.build()
            self.scale = torch.tensor(1.5)
            for block in self.blocks:
                block.num_calls = torch.zeros((), dtype=torch.long)
        self.cut(self.device_mesh)

    def cut(self, mesh):
        if mesh is not None and "tensor_parallel" in mesh.mesh_dim_names:
            for block in self.blocks:
                parallelize_module(
                    block,
                    mesh["tensor_parallel"],
                    {"up": ColwiseParallel(), "down": RowwiseParallel()},
                )

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale

    def training_step(self, batch, batch_idx):
        tokens, targets = batch
        return nn.functional.cross_entropy(self(tokens), targets)

    def configure_optimizers(self):
        if self.case.optimizer == "sgd":
            return torch.optim.SGD(self.parameters(), lr=0.1)
        if self.case.optimizer == "muon":
            matrices, others = (
                [one for one in self.parameters() if (one.ndim == 2) is two]
                for two in (True, False)
            )
            return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.01)]
        options = {self.case.optimizer: True} if self.case.optimizer != "adamw" else {}
        return torch.optim.AdamW(self.parameters(), lr=0.01, **options)


class Recorder(Callback):
    """Losses of all steps, averaged over ranks."""

    def __init__(self):
        self.losses = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(trainer.strategy.reduce(outputs).item())

    def state_dict(self):
        return {"losses": self.losses}

    def load_state_dict(self, state):
        self.losses = state["losses"]


def make_loader(data_parallel_size, num_steps=NUM_STEPS):
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, 13, (num_steps * GLOBAL_BATCH_SIZE,), generator=generator)
    return DataLoader(
        TensorDataset(tokens, (tokens * 5 + 2) % 13),
        batch_size=GLOBAL_BATCH_SIZE // data_parallel_size,
    )


class WholeWeights(Callback):
    """Those at the end, where `fit` leaves shards to the caller."""

    def on_train_end(self, trainer, module):
        state = trainer.strategy.get_module_state_dict(module, layout="full")
        self.weights = {name: value.clone() for name, value in state.items()}


def train_on(rank, name, data_parallel_size):
    """`train` on ranks that are there already, with the strategy that they have been made for."""
    case = CASES[name]
    if case.loop == "fabric":
        fabric = rank.fabric(precision=PRECISIONS[case.dtype])
        result = fabric_loop(fabric, case, data_parallel_size)
        fabric.teardown()
        return result
    whole, options = WholeWeights(), {"plugins": [rank.environment]}
    losses, _ = train(
        case,
        rank.backend.strategy(),
        rank.backend.num_processes,
        data_parallel_size,
        (whole,),
        **options,
    )
    return losses, whole.weights


def train(
    case, strategy="single_device", devices=1, data_parallel_size=None, callbacks=(), **options
):
    """Losses and whole weights after the steps of the case."""
    data_parallel_size = devices if data_parallel_size is None else data_parallel_size
    torch.manual_seed(11)
    if case.loop == "fabric":
        fabric = Fabric(
            strategy=strategy, devices=devices, accelerator="cpu", precision=PRECISIONS[case.dtype]
        )
        return fabric.launch(fabric_loop, case, data_parallel_size)
    module, recorder = Net(case), Recorder()
    trainer = Trainer(
        **{**QUIET, "max_epochs": 1, "precision": PRECISIONS[case.dtype], **options},
        strategy=strategy,
        devices=devices,
        accumulate_grad_batches=case.accumulate,
        gradient_clip_val=case.clip,
        gradient_clip_algorithm=case.clip_algorithm,
        callbacks=[recorder, *callbacks],
    )
    trainer.fit(module, make_loader(data_parallel_size))
    return recorder.losses, module.state_dict()


def fabric_loop(fabric, case, data_parallel_size):
    torch.manual_seed(11)
    module = Net(replace(case, meta=False))
    module.cut(fabric.strategy.device_mesh)
    model, optimizer = fabric.setup(module, module.configure_optimizers())
    loader = fabric.setup_dataloaders(make_loader(data_parallel_size))
    losses = []
    for batch_idx, (tokens, targets) in enumerate(loader):
        ends_window = (batch_idx + 1) % case.accumulate == 0
        with fabric.no_backward_sync(model, enabled=not ends_window):
            loss = nn.functional.cross_entropy(model(tokens), targets)
            fabric.backward(loss / case.accumulate)
        if ends_window:
            if case.clip is not None:
                fabric.clip_gradients(model, optimizer, max_norm=case.clip)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(fabric.all_reduce(loss.detach()).item())
    return losses, fabric.strategy.get_module_state_dict(module, layout="full")
