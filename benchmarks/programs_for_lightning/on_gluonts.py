# gluonts
import numpy as np
import pandas as pd
from gluonts.dataset.pandas import PandasDataset
from gluonts.torch import DeepAREstimator, SimpleFeedForwardEstimator

series = pd.DataFrame(
    {"target": np.sin(np.arange(200) / 5).astype("float32")},
    index=pd.period_range("2020-01-01", periods=200, freq="D"),
)
data = PandasDataset(series, target="target")
for kind, options in ((SimpleFeedForwardEstimator, {}), (DeepAREstimator, {"freq": "D"})):
    estimator = kind(
        prediction_length=7,
        batch_size=8,
        num_batches_per_epoch=5,
        trainer_kwargs={"max_epochs": 2, "accelerator": "cpu"},
        **options,
    )
    print(next(iter(estimator.train(data).predict(data))).mean)
