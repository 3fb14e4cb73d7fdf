"""Strategies whose ranks misunderstand each other, or their data."""

import time

import torch
from averaging import AveragingStrategy
from table import mutant

from core import Session, Strategy
from core.checkpoint import DistributedCheckpointIO

EQUAL = "test_training_equals_one_device[sgd_momentum]"


@mutant("test_reduces[float32]", passes=EQUAL)
class ReducesInPlace(AveragingStrategy):
    """Changes the tensor that is reduced."""

    def reduce(self, tensor, group=None, reduce_op="mean"):
        result = super().reduce(tensor, group, reduce_op)
        if tensor.dtype == result.dtype:
            tensor.copy_(result)
        return result


@mutant("test_reduces[float64]", passes="test_reduces_by_the_mean_at_first")
class MistakesProductForSum(AveragingStrategy):
    """Multiplies when it should sum."""

    def reduce(self, tensor, group=None, reduce_op="mean"):
        return super().reduce(tensor, group, "product" if reduce_op == "sum" else reduce_op)


@mutant("test_reduces[int64]", passes="test_reduces[float32]")
class RoundsMeans(AveragingStrategy):
    """Rounds the mean of integers down."""

    def reduce(self, tensor, group=None, reduce_op="mean"):
        result = super().reduce(tensor, group, reduce_op)
        return result if tensor.is_floating_point() else result.to(tensor.dtype)


@mutant("test_reduces[bfloat16]", passes="test_reduces[float32]")
class WidensHalves(AveragingStrategy):
    """Gives back float32 for shorter formats."""

    def reduce(self, tensor, group=None, reduce_op="mean"):
        return super().reduce(
            tensor.float() if tensor.dtype == torch.bfloat16 else tensor, group, reduce_op
        )


@mutant("test_reduces_by_the_mean_at_first", passes="test_reduces[float32]")
class SumsAtFirst(AveragingStrategy):
    """Sums where no reduction is named."""

    def reduce(self, tensor, group=None, reduce_op="sum"):
        return super().reduce(tensor, group, reduce_op)


@mutant("test_reduces_nested_data", passes="test_reduces[float32]")
class AveragesNumbers(AveragingStrategy):
    """Takes the mean of whole numbers, whatever is asked for."""

    def reduce(self, tensor, group=None, reduce_op="mean"):
        is_number = tensor.dim() == 0 and tensor.dtype == torch.int64
        return super().reduce(tensor, group, "mean" if is_number else reduce_op)


@mutant("test_gathers[float32]", passes="test_reduces[float32]")
class GathersBackwards(AveragingStrategy):
    """Stacks ranks in the reverse order."""

    def all_gather(self, tensor, group=None, sync_grads=False):
        return super().all_gather(tensor, group, sync_grads).flip(0)


@mutant("test_gathers[int32]", passes="test_gathers[float32]")
class GathersFloats(AveragingStrategy):
    """Gathers integers of 32 bits as floats."""

    def all_gather(self, tensor, group=None, sync_grads=False):
        return super().all_gather(
            tensor.float() if tensor.dtype == torch.int32 else tensor, group, sync_grads
        )


@mutant("test_gradients_flow_through_all_gather", passes="test_gathers[float32]")
class CutsGradients(AveragingStrategy):
    """Lets no gradient through all_gather."""

    def all_gather(self, tensor, group=None, sync_grads=False):
        return super().all_gather(tensor).requires_grad_(sync_grads)


@mutant("test_broadcasts_tensors", passes="test_broadcasts_objects")
class BroadcastsTensorsOfTheFirst(AveragingStrategy):
    """Sends the tensor of rank 0, whose turn it isn't."""

    def broadcast(self, obj, src=0):
        return super().broadcast(obj, 0 if isinstance(obj, torch.Tensor) else src)


@mutant("test_broadcasts_objects", passes="test_broadcasts_tensors")
class BroadcastsObjectsOfTheFirst(AveragingStrategy):
    """Sends the object of rank 0, whose turn it isn't."""

    def broadcast(self, obj, src=0):
        return super().broadcast(obj, src if isinstance(obj, torch.Tensor) else 0)


@mutant("test_gathers_objects", passes=EQUAL)
class GathersToTheFirst(AveragingStrategy):
    """Gives objects to rank 0, whichever rank asks."""

    def gather_objects(self, obj, dst=0):
        return super().gather_objects(obj, 0)


@mutant("test_barrier_waits", passes=EQUAL)
class PassesBarriers(AveragingStrategy):
    """Waits for no rank."""

    def barrier(self, name=None):
        pass


@mutant("test_agrees_on_yes_and_no", passes=EQUAL)
class DecidesAlone(AveragingStrategy):
    """Takes each rank's own answer for everybody's."""

    def reduce_boolean_decision(self, decision, all=True):
        return decision


@mutant("test_agrees_on_yes_and_no", passes=EQUAL)
class MistakesAnyForAll(AveragingStrategy):
    """Says yes when any rank does, where all must."""

    def reduce_boolean_decision(self, decision, all=True):
        return super().reduce_boolean_decision(decision, all=False)


@mutant("test_checkpoint_ios_can_talk", passes=EQUAL)
class LeavesStorageAlone(AveragingStrategy):
    """Gathers nothing from the other ranks."""

    def gather_objects(self, obj, dst=0):
        return [obj] if self.global_rank == dst else None


@mutant("test_one_process_is_alone", passes="test_gathers[float32]")
class AddsAnAxisAlone(AveragingStrategy):
    """Stacks a single process's tensor."""

    def all_gather(self, tensor, group=None, sync_grads=False):
        stacked = super().all_gather(tensor, group, sync_grads)
        return stacked if self.world_size > 1 else stacked.unsqueeze(0)


class Changed:
    """Batches of a loader, changed by a function of the whole list."""

    def __init__(self, loader, change):
        self.loader, self.change = loader, change

    def __iter__(self):
        return iter(self.change(list(self.loader)))

    def __len__(self):
        return len(self.change(list(range(len(self.loader)))))

    def __getattr__(self, name):
        return getattr(self.loader, name)


@mutant("test_ranks_that_share_data_have_the_same", passes=EQUAL, data_parallel_size=1)
class BelievesItsRanks(AveragingStrategy):
    """Gives all ranks the same share of the data, and doesn't look whether that is the same on
    all.
    """

    @property
    def data_parallel_size(self):
        return 1

    @property
    def data_parallel_rank(self):
        return 0


@mutant("test_every_sample_comes_once_an_epoch")
class DropsTheLastBatch(AveragingStrategy):
    """Leaves out the last batch."""

    def setup_dataloader(self, loader, stage):
        return Changed(loader, lambda batches: batches[:-1])


@mutant("test_every_sample_comes_once_an_epoch", passes="test_validates")
class RepeatsABatch(AveragingStrategy):
    """Trains on the first batch twice, in the place of the second."""

    def setup_dataloader(self, loader, stage):
        return (
            loader
            if stage != "fit"
            else Changed(loader, lambda batches: batches[:1] + batches[:1] + batches[2:])
        )


@mutant("test_batches_are_those_of_one_device", passes="test_every_sample_comes_once_an_epoch")
class ReversesBatches(AveragingStrategy):
    """Yields batches in an order of its own."""

    def setup_dataloader(self, loader, stage):
        return Changed(loader, lambda batches: batches[::-1])


@mutant("test_uneven_lengths_lose_nothing", passes="test_every_sample_comes_once_an_epoch")
class DropsShortBatches(AveragingStrategy):
    """Leaves out a short last batch."""

    def setup_dataloader(self, loader, stage):
        if stage != "fit":
            return loader
        return Changed(
            loader,
            lambda batches: [b for b in batches if isinstance(b, int) or len(b) == len(batches[0])],
        )


@mutant("test_validation_counts_every_sample_once", passes="test_every_sample_comes_once_an_epoch")
class PadsValidation(AveragingStrategy):
    """Validates the last batch twice, to have an even number."""

    def setup_dataloader(self, loader, stage):
        return (
            loader if stage == "fit" else Changed(loader, lambda batches: [*batches, batches[-1]])
        )


@mutant("test_batches_are_on_the_device")
class SendsBatchesAway(AveragingStrategy):
    """Puts batches onto a device where the model isn't."""

    def setup_dataloader(self, loader, stage):
        return Changed(
            loader, lambda batches: [b if isinstance(b, int) else b.to("meta") for b in batches]
        )


class HastyIO(DistributedCheckpointIO):
    """Returns on the other ranks before rank 0 has written, and leaves out what they have."""

    def save_checkpoint(self, state, path, *, collectives):
        collectives.barrier()
        if collectives.rank == 0:
            time.sleep(0.3)
            super().save_checkpoint(state, path, collectives=Session(Strategy()).collectives)


@mutant("test_a_saved_checkpoint_is_complete", passes="test_resume_keeps_momentum_and_schedule")
class SavesWithoutWaiting(AveragingStrategy):
    """Returns on the other ranks before rank 0 has written."""

    def configure_checkpoint_io(self):
        return HastyIO()
