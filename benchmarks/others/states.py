"""A model and its Adam that have trained a step, and how each contender saves them and loads them
again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accelerate
import lightning
import torch
from torch import nn

from core import Fabric


@dataclass(frozen=True)
class State:
    """The state of a program, and the two calls by which it saves that, and goes on from it.

    Attributes:
        load_older: go on from the one before, where a library keeps it in a place of its own.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    save: Callable[[], object]
    load: Callable[[], object]
    load_older: Callable[[], object] | None = None

    def tensors(self) -> list[torch.Tensor]:
        """The weights and moments themselves, one after the other."""
        moments = [
            state[name]
            for state in self.optimizer.state.values()
            for name in ("exp_avg", "exp_avg_sq")
        ]
        return [*(parameter.data for parameter in self.model.parameters()), *moments]

    def fill(self, number: float) -> None:
        for tensor in self.tensors():
            tensor.fill_(number)


Place = Callable[[Path, nn.Module, torch.optim.Optimizer], State]


def trained(num_layers: int, width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(num_layers)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, width)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def by_hand(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    path = folder / "last.pt"

    def save() -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    def load() -> None:
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    return State(model, optimizer, save, load)


def by_fabric(
    fabric: Any, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> State:
    fabric.launch()
    wrapped = fabric.setup(model, optimizer)
    state, path = dict(zip(("model", "optimizer"), wrapped, strict=True)), folder / "last.ckpt"
    return State(
        model, optimizer, lambda: fabric.save(path, state), lambda: fabric.load(path, state)
    )


def by_core(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    return by_fabric(Fabric(accelerator="cpu"), folder, model, optimizer)


def by_lightning(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    return by_fabric(lightning.Fabric(accelerator="cpu"), folder, model, optimizer)


def by_accelerate(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """One folder, which is named in each call."""
    accelerator, path = accelerate.Accelerator(cpu=True), str(folder / "last")
    accelerator.prepare(model, optimizer)
    return State(
        model, optimizer, lambda: accelerator.save_state(path), lambda: accelerator.load_state(path)
    )


def by_accelerate_numbered(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> State:
    """Folders that Accelerate numbers; it keeps two of them, and loads the one with the highest
    number.
    """
    options = {"project_dir": str(folder), "automatic_checkpoint_naming": True, "total_limit": 2}
    configuration = accelerate.utils.ProjectConfiguration(**options)
    accelerator = accelerate.Accelerator(cpu=True, project_config=configuration)
    accelerator.prepare(model, optimizer)

    def load_older() -> None:
        by_number = sorted(
            folder.glob("checkpoints/*"), key=lambda each: int(each.name.rpartition("_")[2])
        )
        accelerator.load_state(str(by_number[-2]))

    return State(model, optimizer, accelerator.save_state, accelerator.load_state, load_older)


PLACES: dict[str, Place] = {
    "core": by_core,
    "Lightning": by_lightning,
    "Accelerate": by_accelerate,
    "by hand": by_hand,
}
