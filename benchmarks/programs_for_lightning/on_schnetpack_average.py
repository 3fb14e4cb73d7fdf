# schnetpack
from typing import TypeVar

import pytorch_lightning as pl
import torch
import torch.utils.data.dataloader

# which schnetpack imports, and torch 2.13 lacks
torch.utils.data.dataloader.T_co = TypeVar("T_co", covariant=True)

import schnetpack as spk  # noqa: E402
from schnetpack import properties, transform  # noqa: E402
from schnetpack.train import ExponentialMovingAverage  # noqa: E402

inputs = [
    {
        properties.Z: torch.tensor([1, 6, 8]),
        properties.R: torch.randn(3, 3).double(),
        properties.idx: torch.tensor([number]),
        properties.n_atoms: torch.tensor([3]),
        properties.cell: torch.zeros(1, 3, 3).double(),
        properties.pbc: torch.zeros(3, dtype=torch.bool),
        "energy": torch.randn(1),
    }
    for number in range(16)
]
for item in inputs:
    transform.MatScipyNeighborList(cutoff=5.0)(item)
    transform.CastTo32()(item)
network = spk.model.NeuralNetworkPotential(
    representation=spk.representation.SchNet(
        8, 1, spk.nn.GaussianRBF(8, 5.0), spk.nn.CosineCutoff(5.0)
    ),
    input_modules=[spk.atomistic.PairwiseDistances()],
    output_modules=[spk.atomistic.Atomwise(n_in=8, output_key="energy")],
)
output = spk.task.ModelOutput("energy", loss_fn=torch.nn.MSELoss(), metrics={})
task = spk.task.AtomisticTask(network, outputs=[output], optimizer_args={"lr": 0.01})
trainer = pl.Trainer(
    max_epochs=3,
    accelerator="cpu",
    devices=1,
    callbacks=ExponentialMovingAverage(0.9),
    enable_progress_bar=False,
)
trainer.fit(task, spk.data.AtomsLoader(inputs, 4, shuffle=True), spk.data.AtomsLoader(inputs, 4))
