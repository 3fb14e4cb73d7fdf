"""Parts of a checkpoint of one device go on in shards, under other names and with other
parameters.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from core import Module
from core.trainer import Resume
from core_testing.ranks import Backend
from support.sharded_training import WholeWeights


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.filterwarnings("ignore:Adam begins anew for")
def test_renamed_and_added_parameters_go_on_in_shards(tmp_path, strategy):
    RESUME = Resume({"weights", "optimizers", "step"}, renamed={"first": "stem"}, strict=False)

    class Net(Module):
        def __init__(self, *names):
            super().__init__()
            torch.manual_seed(3)
            self.names = names
            for name in names:
                self.add_module(name, nn.Linear(4, 4).double())

        def training_step(self, batch):
            for name in self.names:
                batch = getattr(self, name)(batch)
            return batch.square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    def fit(rank, names, path, **resumed):
        whole = WholeWeights()
        trainer = rank.trainer(callbacks=whole, max_steps=5 if resumed else 3)
        data = torch.randn(32, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        trainer.fit(
            Net(*names), DataLoader(data, batch_size=4 // rank.backend.num_processes), **resumed
        )
        if not resumed:
            trainer.save_checkpoint(path)
        return whole.weights

    def resume(rank, names, path):
        return fit(rank, names, path, ckpt_path=path, resume=RESUME)

    one, several = Backend(lambda: "single_device"), Backend(lambda: strategy, num_processes=2)
    path, names = tmp_path / "a.ckpt", ("stem", "new", "last")
    one.run(fit, ("first", "gone", "last"), path)
    found, expected = several.run(resume, names, path)[0], one.run(resume, names, path)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
