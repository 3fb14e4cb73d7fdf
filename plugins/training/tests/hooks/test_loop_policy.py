"""Another Trainer's choices for the loops."""

import torch

from core import Callback, Trainer
from core.callbacks import LambdaCallback
from core.trainer import LoopPolicy
from support.small_nets import QUIET, Net, batches


def test_another_trainer_observes_cuts_and_shapes_outputs():
    class Recording(Callback):
        """Notes the outputs that it gets, and the epochs that end."""

        def __init__(self):
            self.outputs, self.num_ended = [], 0

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.outputs.append(outputs)

        def on_train_epoch_end(self, trainer, module):
            self.num_ended += 1

    observer, callback = Recording(), Recording()

    class Others(LoopPolicy):
        ends_cut_epochs = True

        def __init__(self, observer):
            self.observers = [observer]

        def step_outputs(self, output, loss):
            return {"seen": super().step_outputs(output, loss)}

    class OwnTrainer(Trainer):
        def __init__(self, observer, **options):
            super().__init__(**options)
            self.loop_policy = Others(observer)

    trainer = OwnTrainer(observer, **QUIET, max_steps=3, callbacks=callback)
    trainer.fit(Net(), batches(5))
    assert trainer.callbacks == [callback]
    for each in (observer, callback):
        assert each.num_ended == 1
        assert [type(outputs["seen"]) for outputs in each.outputs] == [torch.Tensor] * 3


def test_by_default_a_cut_epoch_goes_on_one_day():
    dims, ended = [], []
    callback = LambdaCallback(
        on_train_batch_end=lambda trainer, module, outputs, *_: dims.append(outputs.ndim),
        on_train_epoch_end=lambda *_: ended.append(True),
    )
    Trainer(**QUIET, max_steps=3, callbacks=callback).fit(Net(), batches(5))
    assert (ended, dims) == ([], [0] * 3)
