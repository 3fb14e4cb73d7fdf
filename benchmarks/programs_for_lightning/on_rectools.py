# rectools
import numpy as np
import pandas as pd
from rectools.dataset import Dataset
from rectools.models import SASRecModel

rng = np.random.default_rng(0)
rows = {"user_id": np.repeat(np.arange(20), 10), "item_id": rng.integers(0, 30, 200), "weight": 1}
rows["datetime"] = pd.date_range("2024-01-01", periods=200, freq="h")
data = Dataset.construct(pd.DataFrame(rows))
model = SASRecModel(
    n_factors=16,
    n_blocks=1,
    n_heads=1,
    session_max_len=8,
    epochs=2,
    batch_size=8,
    deterministic=True,
)
model.fit(data)
print(model.recommend(users=[0, 1], dataset=data, k=3, filter_viewed=True))
