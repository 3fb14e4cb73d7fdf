# optuna-integration
import lightning.pytorch as pl
import optuna
import torch
from optuna_integration import PyTorchLightningPruningCallback


class Line(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr, self.layer = lr, torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def objective(trial):
    pl.seed_everything(trial.number)
    pruning = PyTorchLightningPruningCallback(trial, monitor="val_loss")
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        callbacks=[pruning],
    )
    trainer.fit(Line(trial.suggest_float("lr", 1e-3, 0.3)), loaders(True), loaders(False))
    return trainer.callback_metrics["val_loss"].item()


def loaders(shuffle):
    return torch.utils.data.DataLoader(points, batch_size=8, shuffle=shuffle)


points = torch.randn(32, 4)
pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=0)
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), pruner=pruner)
study.optimize(objective, n_trials=6)
print([trial.state.name for trial in study.trials], study.best_value)
