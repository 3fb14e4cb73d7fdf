# contextualized-ml
import numpy as np
from contextualized.easy import ContextualizedRegressor

rng = np.random.default_rng(0)
context, x = rng.normal(size=(64, 3)), rng.normal(size=(64, 2))
y = (context[:, :1] * x[:, :1]) + x[:, 1:] + rng.normal(scale=0.1, size=(64, 1))
model = ContextualizedRegressor(n_bootstraps=2)
model.fit(context, x, y, max_epochs=3, val_split=0.25, learning_rate=1e-2, encoder_type="mlp")
print(model.predict(context[:2], x[:2]), model.predict_params(context[:2])[0].shape)
