"""What published packages do with Lightning's classes: the same is done here, by stand-ins."""

import logging

import pytest
import torch

import core
from core_testing import in_one_process


@pytest.fixture
def strategies(installed):
    return installed("lightning.pytorch.strategies")


def test_a_strategy_sees_the_module_each_loader_and_each_backward(lit, strategies):
    seen = []

    class Own(strategies.SingleDeviceStrategy):
        def setup(self, trainer):
            seen.append(type(self.model).__name__)
            super().setup(trainer)

        def process_dataloader(self, dataloader):
            seen.append(type(dataloader).__name__)
            return super().process_dataloader(dataloader)

        def pre_backward(self, closure_loss):
            seen.append(next(self.model.parameters()).grad is None)

        def post_backward(self, closure_loss):
            seen.append(next(self.model.parameters()).grad is None)

    lit.fit(lit.Plain(), val=False, strategy=Own("cpu"), max_steps=2)
    assert seen == ["Plain", "DataLoader", True, False, True, False]


def test_ddp_with_a_wrapper_and_shares_of_its_own(lit, strategies):
    pytest.importorskip("core_ddp")
    models = []

    class Own(strategies.DDPStrategy):
        @property
        def distributed_sampler_kwargs(self):
            return {"num_replicas": 2, "rank": 1}

        def configure_ddp(self):
            models.append(self.model)

    strategy = Own(process_group_backend="gloo")
    trainer = lit.make_trainer(strategy=strategy)
    assert (strategy.data_parallel_size, strategy.data_parallel_rank) == (2, 1)
    assert trainer.world_size == 1
    assert strategies.DDPStrategy().distributed_sampler_kwargs == {"num_replicas": 1, "rank": 0}
    whole = type("Whole", (strategies.DDPStrategy,), {"configure_ddp": Own.configure_ddp})
    in_one_process(
        lambda: lit.fit(lit.Plain(), strategy=whole(process_group_backend="gloo")), ranks=1
    )
    assert len(models) == 1


def test_an_override_of_load_checkpoint_is_refused_when_one_is_loaded(lit, strategies):
    class Own(strategies.SingleDeviceStrategy):
        def load_checkpoint(self, checkpoint_path, weights_only=None):
            raise AssertionError

    lit.fit(lit.Plain(), strategy=Own("cpu")).save_checkpoint("saved.ckpt")
    with pytest.raises(core.ConfigurationError, match=r"Own.load_checkpoint: nothing calls it"):
        lit.fit(lit.Plain(), strategy=Own("cpu"), ckpt_path="saved.ckpt")


def test_parts_that_packages_ask_for(lit, installed, tmp_path):
    bars = installed("lightning.pytorch.callbacks.progress.progress_bar")
    trainer = lit.make_trainer(logger=lit.pl.loggers.CSVLogger(tmp_path, version=3))
    assert bars.get_standard_metrics(trainer) == {"v_num": 3}
    assert bars.get_standard_metrics(lit.make_trainer()) == {}
    assert trainer._accelerator_connector._parallel_devices == [torch.device("cpu")]
    assert issubclass(
        installed("lightning.pytorch.callbacks.progress.rich_progress").CustomProgress, object
    )
    assert lit.pl._logger is logging.getLogger("lightning.pytorch")
