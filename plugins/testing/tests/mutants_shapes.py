"""Strategies that take what they have seen of the first batch for true of all."""

from averaging import AveragingStrategy
from table import mutant

SHAPES = "test_other_shapes_are_trained_or_refused"


class Remembering(AveragingStrategy):
    """Has buffers of the first batch's length, as a captured graph has, into which batches are
    copied.
    """

    length = None

    def run_training_step(self, batch, batch_idx, step):
        return super().run_training_step(self.copied(batch), batch_idx, step)

    def copied(self, batch):
        if not isinstance(batch, list):
            return batch
        self.length = self.length or batch[0].size(1)
        return [part[:, : self.length] for part in batch]


@mutant(SHAPES, passes="test_training_equals_one_device[sgd_momentum]")
class CutsLongerBatches(Remembering):
    """Copies batches into a buffer of the first one's length, and so leaves out the rest of longer
    ones.
    """


@mutant(SHAPES, passes="test_validates")
class CutsInValidation(Remembering):
    """Has such a buffer for validation alone, of the length of the first batch that it was given in
    training.
    """

    def run_training_step(self, batch, batch_idx, step):
        self.copied(batch)
        return AveragingStrategy.run_training_step(self, batch, batch_idx, step)

    def step_callable(self, name, module=None):
        call = super().step_callable(name, module)
        return (
            (lambda batch, *rest: call(self.copied(batch), *rest))
            if name == "validation_step"
            else call
        )
