# pina-mathlab
import torch
from pina import Trainer
from pina.callback import MetricTracker, SwitchOptimizer
from pina.model import FeedForward
from pina.optim import TorchOptimizer
from pina.problem.zoo import SupervisedProblem
from pina.solver import SupervisedSolver

points = torch.rand(32, 2)
problem = SupervisedProblem(input_=points, output_=points.prod(1, keepdim=True))
solver = SupervisedSolver(
    problem=problem,
    model=FeedForward(input_dimensions=2, output_dimensions=1, inner_size=8),
    optimizer=TorchOptimizer(torch.optim.Adam, lr=0.01),
    use_lt=False,
)
switch = SwitchOptimizer(TorchOptimizer(torch.optim.SGD, lr=0.1), epoch_switch=3)
trainer = Trainer(
    solver=solver,
    max_epochs=6,
    batch_size=8,
    train_size=0.75,
    val_size=0.25,
    accelerator="cpu",
    enable_progress_bar=False,
    callbacks=[switch, MetricTracker()],
)
trainer.train()
