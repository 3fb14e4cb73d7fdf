# darts
import numpy as np
from darts import TimeSeries
from darts.models import NBEATSModel, TCNModel

series = TimeSeries.from_values(np.sin(np.arange(120) / 5).astype("float32"))
for kind, options in (
    (NBEATSModel, {"num_stacks": 2, "num_blocks": 1, "layer_widths": 16}),
    (TCNModel, {}),
):
    model = kind(
        input_chunk_length=12,
        output_chunk_length=4,
        n_epochs=2,
        batch_size=16,
        random_state=0,
        pl_trainer_kwargs={"accelerator": "cpu", "enable_progress_bar": False},
        **options,
    )
    model.fit(series)
    print(model.predict(4).values().ravel())
