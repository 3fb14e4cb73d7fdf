# anomalib
from pathlib import Path

import numpy as np
from anomalib.data import Folder
from anomalib.engine import Engine
from anomalib.models import Ganomaly
from PIL import Image

rng = np.random.default_rng(0)
for kind in ("good", "bad"):
    Path("images", kind).mkdir(parents=True)
    for number in range(6):
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(
            Path("images", kind, f"{number}.png")
        )
data = Folder(
    "images",
    root="images",
    normal_dir="good",
    abnormal_dir="bad",
    train_batch_size=2,
    eval_batch_size=2,
    num_workers=0,
)
model = Ganomaly(batch_size=2, n_features=8)
engine = Engine(max_epochs=1, accelerator="cpu", devices=1, default_root_dir="results")
engine.fit(model=model, datamodule=data)
engine.test(model=model, datamodule=data)
