# pytorch-forecasting
import lightning.pytorch as pl
import numpy as np
import pandas as pd
from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.data import GroupNormalizer
from pytorch_forecasting.metrics import QuantileLoss

steps = np.arange(60)
groups = [
    pd.DataFrame({"step": steps, "group": name, "value": np.sin(steps / 5) + 2 + len(name)})
    for name in ("a", "bb")
]
data = TimeSeriesDataSet(
    pd.concat(groups, ignore_index=True),
    time_idx="step",
    target="value",
    group_ids=["group"],
    max_encoder_length=12,
    max_prediction_length=4,
    time_varying_unknown_reals=["value"],
    target_normalizer=GroupNormalizer(groups=["group"]),
)
loader = data.to_dataloader(train=True, batch_size=16, num_workers=0)
net = TemporalFusionTransformer.from_dataset(
    data, hidden_size=8, attention_head_size=1, loss=QuantileLoss(), log_interval=0
)
trainer = pl.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False)
trainer.fit(net, loader)
best = TemporalFusionTransformer.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
print(
    best.loss, trainer.validate(best, data.to_dataloader(train=False, batch_size=16, num_workers=0))
)
