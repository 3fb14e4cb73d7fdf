# pytorch-lifestream
from functools import partial

import numpy as np
import pytorch_lightning as pl
import torch
from ptls.data_load.datasets import MemoryMapDataset
from ptls.data_load.iterable_processing import SeqLenFilter
from ptls.frames import PtlsDataModule
from ptls.frames.coles import ColesDataset, CoLESModule
from ptls.frames.coles.split_strategy import SampleSlices
from ptls.nn import RnnSeqEncoder, TrxEncoder

rng = np.random.default_rng(0)
clients = [
    {
        "event_time": torch.arange(40),
        "mcc": torch.from_numpy(rng.integers(1, 9, 40)),
        "amount": torch.from_numpy(rng.normal(size=40).astype("float32")),
    }
    for _ in range(16)
]
encoder = TrxEncoder(
    embeddings_noise=0.003,
    numeric_values={"amount": "identity"},
    embeddings={"mcc": {"in": 10, "out": 4}},
)
module = CoLESModule(
    seq_encoder=RnnSeqEncoder(trx_encoder=encoder, hidden_size=8, type="gru"),
    optimizer_partial=partial(torch.optim.Adam, lr=0.01),
    lr_scheduler_partial=partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.9),
)
slices = SampleSlices(split_count=3, cnt_min=5, cnt_max=15)
data = ColesDataset(MemoryMapDataset(clients, [SeqLenFilter(min_seq_len=20)]), slices)
loaders = PtlsDataModule(
    train_data=data, valid_data=data, train_batch_size=4, train_num_workers=0, valid_batch_size=4
)
trainer = pl.Trainer(max_epochs=3, accelerator="cpu", devices=1, enable_progress_bar=False)
trainer.fit(module, loaders)
