"""Strategies whose checkpoints are wrong."""

import copy
from contextlib import suppress

import torch
from averaging import AveragingStrategy
from table import mutant

from core import CheckpointError, CheckpointNotFoundError, Chunk, ShardedLeaf
from core.checkpoint import DistributedCheckpointIO

EQUAL = "test_training_equals_one_device[sgd_momentum]"


class AlteringIO(DistributedCheckpointIO):
    """Changes a state on its way to the storage, or from it."""

    def __init__(self, before=lambda state: state, after=lambda state: state):
        self.before, self.after = before, after

    def save_checkpoint(self, state, path, *, collectives):
        super().save_checkpoint(self.before(state), path, collectives=collectives)

    def load_checkpoint(self, path, *, collectives, state=None):
        return self.after(super().load_checkpoint(path, collectives=collectives, state=state))


class SilentIO(DistributedCheckpointIO):
    """Goes on when a checkpoint can't be written."""

    def save_checkpoint(self, state, path, *, collectives):
        with suppress(CheckpointError):
            super().save_checkpoint(state, path, collectives=collectives)


class EmptyIO(DistributedCheckpointIO):
    """Has an empty state where there is no checkpoint."""

    def describe_checkpoint(self, path, *, collectives):
        with suppress(CheckpointNotFoundError):
            return super().describe_checkpoint(path, collectives=collectives)
        return {}

    def load_checkpoint(self, path, *, collectives, state=None):
        with suppress(CheckpointNotFoundError):
            return super().load_checkpoint(path, collectives=collectives, state=state)
        return {}


def flip_tensors(state):
    return {
        key: value.flip(0) if isinstance(value, torch.Tensor) and value.dim() else value
        for key, value in state.items()
    }


@mutant("test_resume_is_bit_exact", passes="test_resume_keeps_momentum_and_schedule")
class SwapsRandomStates(AveragingStrategy):
    """Gives each rank the random state of another one."""

    def gather_objects(self, obj, dst=0):
        gathered = super().gather_objects(obj, dst)
        if gathered and isinstance(obj, dict) and "random" in obj:
            states = [part["random"] for part in reversed(gathered)]
            gathered = [
                {**part, "random": state} for part, state in zip(gathered, states, strict=True)
            ]
        return gathered


@mutant("test_resume_keeps_momentum_and_schedule", passes=EQUAL)
class LosesMomentum(AveragingStrategy):
    """Loads an optimizer's options, and not its moments."""

    def load_optimizer_state_dict(self, optimizer, state):
        super().load_optimizer_state_dict(optimizer, {**state, "state": {}})


@mutant("test_resume_keeps_momentum_and_schedule", passes=EQUAL)
class LosesTheSchedule(AveragingStrategy):
    """Restores everything but the schedulers."""

    def configure_checkpoint_io(self):
        return AlteringIO(
            after=lambda saved: (
                {**saved, "lr_schedulers": []} if "lr_schedulers" in saved else saved
            )
        )


@mutant("test_resume_is_bit_exact", passes="test_goes_on_under_one_device")
class RoundsWeights(AveragingStrategy):
    """Loads weights rounded to nine digits."""

    def loaded(self, state, module):
        return {name: value.mul(1e11).round().div(1e11) for name, value in state.items()}


@mutant("test_state_has_the_users_names", passes="test_resume_is_bit_exact")
class SavesAWrappersNames(AveragingStrategy):
    """Puts a wrapper's prefix before names, and takes it off again itself."""

    def saved(self, state, module, layout):
        return {f"module.{name}": value for name, value in state.items()}

    def loaded(self, state, module):
        return {name.removeprefix("module."): value for name, value in state.items()}


@mutant("test_goes_on_under_one_device", passes="test_resume_is_bit_exact")
class SavesItsOwnLayout(AveragingStrategy):
    """Transposes weights in its checkpoints, which only it can read."""

    def saved(self, state, module, layout):
        return {name: value.flatten() for name, value in state.items()}

    def loaded(self, state, module):
        own = module.state_dict()
        return {
            name: value.view_as(own[name]) if name in own else value
            for name, value in state.items()
        }


class Marked(AveragingStrategy):
    """Writes its size into optimizer states."""

    def get_optimizer_state_dict(self, optimizer):
        return {**super().get_optimizer_state_dict(optimizer), "size": self.world_size}


@mutant("test_goes_on_in_another_number_of_processes", passes="test_goes_on_under_one_device")
class KnowsOneSize(Marked):
    """Loads what the same number of ranks has saved, and nothing else."""

    def load_optimizer_state_dict(self, optimizer, state):
        if state.get("size", self.world_size) != self.world_size:
            raise CheckpointError("saved by another number of ranks")
        super().load_optimizer_state_dict(optimizer, state)


@mutant("test_goes_on_from_one_device", passes="test_goes_on_in_another_number_of_processes")
class KnowsItsOwnOnly(Marked):
    """Loads what it has saved itself, and nothing else."""

    def load_optimizer_state_dict(self, optimizer, state):
        if "size" not in state:
            raise CheckpointError("saved by another program")
        super().load_optimizer_state_dict(optimizer, state)


@mutant("test_optimizer_state_has_parameter_names", passes=EQUAL)
class CountsParameters(AveragingStrategy):
    """Keys optimizer states by position, as torch does."""

    def get_optimizer_state_dict(self, optimizer):
        return optimizer.state_dict()

    def load_optimizer_state_dict(self, optimizer, state):
        optimizer.load_state_dict(state)


@mutant("test_a_failing_save_is_raised_everywhere", passes="test_resume_is_bit_exact")
class SwallowsFailedSaves(AveragingStrategy):
    """Goes on when a checkpoint can't be written."""

    def configure_checkpoint_io(self):
        return SilentIO()


@mutant("test_saves_after_training", passes="test_resume_is_bit_exact")
class ForgetsTraining(AveragingStrategy):
    """Gives the weights that training began with, once it has let go of the optimizers."""

    def begun(self, module):
        self.__dict__.setdefault("first", copy.deepcopy(module.state_dict()))

    def saved(self, state, module, layout):
        return state if self.optimizers else self.first


@mutant("test_streams_whole_weights", passes="test_resume_is_bit_exact")
class StreamsAStaleUnit(AveragingStrategy):
    """Streams a layer as it was when it was asked for first."""

    def saved(self, state, module, layout):
        if layout == "sharded":
            state["first.weight"] = self.__dict__.setdefault("kept", state["first.weight"].clone())
        return state


@mutant("test_streams_whole_weights", passes="test_resume_is_bit_exact")
class StreamsNoSecondHalf(AveragingStrategy):
    """Gives the parts of a tensor to stream, but for the last rank's."""

    def saved(self, state, module, layout):
        if layout == "sharded":
            whole = state["first.weight"]
            half, width = len(whole) // 2, whole.shape[1]
            own = (Chunk((0, 0), (half, width), whole[:half]),) if self.global_rank == 0 else ()
            state["first.weight"] = ShardedLeaf(tuple(whole.shape), whole.dtype, own)
        return state


@mutant("test_a_foreign_checkpoint_is_refused", passes="test_resume_is_bit_exact")
class LoadsWhateverFits(AveragingStrategy):
    """Leaves out what doesn't fit, without a word."""

    def load_module_state_dict(self, module, state, *, strict=True):
        own = module.state_dict()
        fitting = {
            name: value
            for name, value in state.items()
            if name in own and value.shape == own[name].shape
        }
        super().load_module_state_dict(module, fitting, strict=False)


@mutant("test_a_missing_checkpoint_is_said", passes="test_resume_is_bit_exact")
class StartsAnew(AveragingStrategy):
    """Begins from nothing when there is no checkpoint."""

    def configure_checkpoint_io(self):
        return EmptyIO()


@mutant("test_values_come_back", passes="test_resume_is_bit_exact")
class LosesTensors(AveragingStrategy):
    """Reverses plain tensors on their way into the checkpoint."""

    def configure_checkpoint_io(self):
        return AlteringIO(before=flip_tensors)


@mutant("test_every_part_comes_back", passes="test_goes_on_under_one_device")
class SavesWhatIsTrained(AveragingStrategy):
    """Leaves frozen weights out of its checkpoints."""

    def saved(self, state, module, layout):
        parameters = self.session.handle_of(module).module.named_parameters()
        frozen = {name for name, parameter in parameters if not parameter.requires_grad}
        return {name: value for name, value in state.items() if name not in frozen}

    def loaded(self, state, module):
        return self.session.handle_of(module).module.state_dict(keep_vars=True) | state


@mutant("test_every_part_comes_back", passes="test_goes_on_under_one_device")
class SavesNoBuffers(SavesWhatIsTrained):
    """Leaves buffers out of its checkpoints."""

    def saved(self, state, module, layout):
        buffers = dict(self.session.handle_of(module).module.named_buffers())
        return {name: value for name, value in state.items() if name not in buffers}


@mutant("test_every_part_comes_back", passes="test_resume_keeps_momentum_and_schedule")
class RestoresTheFirstGroup(AveragingStrategy):
    """Gives back the options of the first parameter group, and leaves the others as they are."""

    def load_optimizer_state_dict(self, optimizer, state):
        others = [{**group} for group in optimizer.param_groups[1:]]
        super().load_optimizer_state_dict(optimizer, state)
        for group, before in zip(optimizer.param_groups[1:], others, strict=True):
            group.update(before)
