"""Strategies that count samples twice where ranks have different numbers of them."""

from averaging import AveragingStrategy
from table import mutant

COUNTS_ONCE = "test_each_sample_counts_once"


@mutant(f"{COUNTS_ONCE}[1-1]", passes="test_uneven_lengths_lose_nothing")
class LearnsFromRepeatedSamples(AveragingStrategy):
    """Leaves out what a batch weighs: a sample that a rank repeats to join a step counts in the
    gradient.
    """

    def before_batch(self, step):
        if step.weight == 0:
            step.weight = None


@mutant(f"{COUNTS_ONCE}[1-1]", passes="test_losses_are_weighted[trainer-1]")
class LogsRepeatedSamples(AveragingStrategy):
    """Lets a sample of weight 0 count in what a step logs."""

    def before_batch(self, step):
        if step.weight == 0:
            self.session.handles[0].module.trainer.run.logged.train.share = None


@mutant("test_streams_are_weighted[3]", passes=f"{COUNTS_ONCE}[1-3]")
class WeighsRepeatedItems(AveragingStrategy):
    """Lets a batch by which a rank joins the others' steps have the weight that its step gave."""

    def run_training_step(self, batch, batch_idx, step):
        compute_loss = step.compute_loss

        def compute(*arguments):
            loss = compute_loss(*arguments)
            step.weight = None if self.session.weights is not None else step.weight
            return loss

        step.compute_loss = compute
        output = super().run_training_step(batch, batch_idx, step)
        step.compute_loss = compute_loss
        return output


@mutant(f"{COUNTS_ONCE}[2-3]", passes="test_losses_are_weighted[trainer-3]")
class WeighsNoShortWindow(AveragingStrategy):
    """Weighs batches among those of their step, and not of their window."""

    def before_batch(self, step):
        if step.weight and step.num_accumulated > 1:
            step.weight = None


@mutant("test_an_odd_evaluation_ends", passes="test_every_sample_comes_once_an_epoch")
class PadsEvaluation(AveragingStrategy):
    """Fills evaluation up to equal numbers of batches, and counts those that come again."""

    def setup_dataloader(self, loader, stage):
        if stage == "fit":
            return loader
        batches = list(loader)
        return batches + batches[-1:]
