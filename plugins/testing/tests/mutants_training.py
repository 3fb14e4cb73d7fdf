"""Strategies that train something, and not what they should."""

import copy

import torch
import torch.distributed as dist
from averaging import AveragingStrategy
from table import mutant

from core import Capability, StepOutput
from core.contract import GradientClipping

EQUAL = "test_training_equals_one_device"


@mutant(f"{EQUAL}[sgd_momentum]")
class ForgetsToAverage(AveragingStrategy):
    """Never exchanges gradients."""

    def exchange(self, gradient):
        pass


@mutant(f"{EQUAL}[weights_that_begin_apart]", passes=f"{EQUAL}[sgd_momentum]")
class KeepsItsOwnWeights(AveragingStrategy):
    """Begins on every rank with the weights that were built there."""

    def begin_together(self, module):
        pass


@mutant(f"{EQUAL}[buffers_that_begin_apart]", passes=f"{EQUAL}[weights_that_begin_apart]")
class KeepsItsOwnBuffers(AveragingStrategy):
    """Begins with the weights of rank 0, and on every rank with the buffers that were built
    there.
    """

    def begin_together(self, module):
        for parameter in module.parameters():
            dist.broadcast(parameter.detach(), src=0)


@mutant(f"{EQUAL}[sgd_momentum]", passes=f"{EQUAL}[adam]", tolerance=1e-5)
class AveragesTwice(AveragingStrategy):
    """Divides by the number of ranks twice, which Adam doesn't notice."""

    def exchange(self, gradient):
        super().exchange(gradient)
        gradient /= self.world_size


@mutant(f"{EQUAL}[many_steps]", passes=f"{EQUAL}[sgd_momentum]")
class StopsAveraging(AveragingStrategy):
    """Averages gradients in the first 40 backwards of a run."""

    num_averaged = 0

    def average(self, manual):
        self.num_averaged += 1
        if self.num_averaged <= 40:
            super().average(manual)


@mutant(f"{EQUAL}[fabric_many_steps]", passes=f"{EQUAL}[fabric]")
class SumsOnce(AveragingStrategy):
    """Doesn't divide the gradients of the 50th backward."""

    num_averaged = 0

    def average(self, manual):
        self.num_averaged += 1
        super().average(manual)
        for parameter in self.parameters() if self.num_averaged == 50 else ():
            parameter.grad *= self.world_size


@mutant(f"{EQUAL}[many_steps]")
class LeavesOneUndivided(AveragingStrategy):
    """Sums the gradient of the first bias, and averages the others."""

    def average(self, manual):
        super().average(manual)
        for parameter in [
            each for each in self.parameters() if each.ndim == 1 and each.grad is not None
        ][:1]:
            parameter.grad *= self.world_size


@mutant(f"{EQUAL}[matrices_apart]", passes=f"{EQUAL}[accumulated_and_clipped]")
class ClipsEachOptimizer(AveragingStrategy):
    """Clips the gradients of each of several optimizers by their own norm, and not by that of
    all.
    """

    def clip_gradients(self, module, optimizer, clipping):
        for one in getattr(optimizer, "joined", [optimizer]):
            norm = super().clip_gradients(module, one, clipping)
        return norm


@mutant(f"{EQUAL}[sgd_momentum]")
class SumsGradients(AveragingStrategy):
    """Sums gradients, and calls it an average."""

    def exchange(self, gradient):
        dist.all_reduce(gradient)


@mutant(
    "test_unfrozen_weights_are_trained_or_refused[between two steps]",
    passes=f"{EQUAL}[frozen_weights]",
)
class AveragesWhatWasTrainable(AveragingStrategy):
    """Averages gradients of those weights that were to be trained when they were set up."""

    def begun(self, module):
        self.trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def parameters(self):
        return self.trainable


@mutant(
    "test_weights_frozen_within_a_run_stay_or_are_refused[between two steps]",
    passes=f"{EQUAL}[frozen_weights]",
)
class FillsInZeros(AveragingStrategy):
    """Gives a gradient of zeros to each weight that was to be trained when it was set up: momentum
    moves it on.
    """

    def begun(self, module):
        self.trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def average(self, manual):
        for parameter in self.trainable:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        super().average(manual)


@mutant(f"{EQUAL}[sgd_momentum]", passes=f"{EQUAL}[fabric_zeroed_gradients]")
class DetachesItsBuffer(AveragingStrategy):
    """Reduces one flat buffer, from which zero_grad(set_to_none=True) has detached the gradients:
    ranks agree, the loss falls, the weights are wrong."""

    def begun(self, module):
        trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.buffer = torch.zeros(sum(p.numel() for p in trainable), dtype=trainable[0].dtype)
        parts = self.buffer.split([p.numel() for p in trainable])
        self.views = [(p, part.view_as(p)) for p, part in zip(trainable, parts, strict=True)]
        self.before_step(None)

    def before_step(self, optimizer):
        for parameter, view in self.views:
            parameter.grad = view

    def average(self, manual):
        self.exchange(self.buffer)


@mutant(f"{EQUAL}[accumulated]")
class StepsInEveryBatch(AveragingStrategy):
    """Doesn't wait for the end of an accumulation window."""

    def before_batch(self, step):
        step.ends_window = True


@mutant(f"{EQUAL}[accumulated_to_a_short_window]", passes=f"{EQUAL}[sgd_momentum]")
class ForgetsToDivide(AveragingStrategy):
    """Sums the losses of an accumulation window instead of averaging them."""

    def before_batch(self, step):
        step.num_accumulated = 1


@mutant("test_no_backward_sync_keeps_gradients_local", passes=f"{EQUAL}[accumulated]")
class AlwaysSyncs(AveragingStrategy):
    """Declares NO_SYNC, and exchanges gradients all the same."""

    def no_backward_sync(self, module, enabled=True):
        return super().no_backward_sync(module, False)


@mutant(f"{EQUAL}[fabric_accumulated]", passes=f"{EQUAL}[fabric]")
class NeverSyncsAgain(AveragingStrategy):
    """Leaves no_backward_sync without turning the exchange on again."""

    def no_backward_sync(self, module, enabled=True):
        if enabled:
            self.syncs = False
        return super().no_backward_sync(module, enabled)


@mutant(f"{EQUAL}[clipped_by_norm]", passes=f"{EQUAL}[sgd_momentum]")
class ClipsPerRank(AveragingStrategy):
    """Clips before gradients are averaged, each rank its own."""

    def average(self, manual):
        pass

    def before_step(self, optimizer):
        if self.world_size > 1:
            super().average(False)


@mutant(f"{EQUAL}[clipped_by_value]", passes=f"{EQUAL}[clipped_by_norm]")
class ClipsValuesTooMuch(AveragingStrategy):
    """Divides the largest value by the number of ranks."""

    def clip_gradients(self, module, optimizer, clipping):
        if clipping.algorithm == "value":
            clipping = GradientClipping(clipping.value / self.world_size, "value")
        return super().clip_gradients(module, optimizer, clipping)


@mutant("test_gradient_clipping_returns_the_norm", passes=f"{EQUAL}[clipped_by_norm]")
class ReturnsTheClippedNorm(AveragingStrategy):
    """Returns what the norm has become, not what it was."""

    def clip_gradients(self, module, optimizer, clipping):
        norm = super().clip_gradients(module, optimizer, clipping)
        return None if norm is None else norm.clamp(max=clipping.value)


@mutant(f"{EQUAL}[parameter_groups]", passes=f"{EQUAL}[adamw]")
class KnowsOneGroup(AveragingStrategy):
    """Gives all parameter groups the options of the first."""

    def setup_optimizer(self, optimizer):
        first = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        for group in optimizer.param_groups:
            group.update(first)
        return optimizer


@mutant(f"{EQUAL}[tied_weights]", passes=f"{EQUAL}[sgd_momentum]")
class AveragesTiedWeightsTwice(AveragingStrategy):
    """Walks modules rather than parameters, and sums a shared weight's gradient once for each
    place.
    """

    def average(self, manual):
        for handle in self.session.handles:
            for part in handle.module.modules():
                for parameter in part.parameters(recurse=False):
                    if parameter.grad is not None:
                        dist.all_reduce(parameter.grad)
                        parameter.grad /= self.world_size if parameter is not None else 1
                        if (
                            hasattr(handle.module, "twins")
                            and parameter is handle.module.twins[0].weight
                        ):
                            parameter.grad *= self.world_size**0.5


@mutant(f"{EQUAL}[frozen_weights]", passes=f"{EQUAL}[sgd_momentum]")
class StopsAtFrozenWeights(AveragingStrategy):
    """Averages up to the first parameter that has no gradient."""

    def average(self, manual):
        for parameter in self.parameters():
            if parameter.grad is None:
                break
            self.exchange(parameter.grad)


@mutant("test_hooks_of_parameters_are_kept_or_refused", passes=f"{EQUAL}[sgd_momentum]")
class LosesHooks(AveragingStrategy):
    """Loses the hooks of parameters, as one does that puts others in their place."""

    def setup_module(self, module):
        for parameter in module.parameters():
            if parameter._backward_hooks:
                parameter._backward_hooks.clear()
        return super().setup_module(module)


@mutant("test_sparse_gradients_are_trained_or_refused", passes=f"{EQUAL}[sgd_momentum]")
class SharesMemoryOfGradients(AveragingStrategy):
    """Divides a sparse gradient as it comes, in the memory of the outputs' gradient, which other
    layers still need.
    """

    def begun(self, module):
        for part in module.modules():
            if isinstance(part, torch.nn.Embedding) and self.world_size > 1:
                part.weight.register_post_accumulate_grad_hook(self.divide)

    def divide(self, weight):
        weight.grad.div_(self.world_size)

    def exchange(self, gradient):
        if gradient.is_sparse:
            dist.all_reduce(gradient)
        else:
            super().exchange(gradient)


@mutant(f"{EQUAL}[unused_weights]", passes=f"{EQUAL}[sgd_momentum]")
class NeedsAllGradients(AveragingStrategy):
    """Takes for granted that every trainable parameter has a gradient."""

    def average(self, manual):
        for parameter in self.parameters():
            if parameter.requires_grad:
                self.exchange(parameter.grad)


@mutant(f"{EQUAL}[batch_norm]", passes=f"{EQUAL}[sgd_momentum]")
class TrainsInEvaluationMode(AveragingStrategy):
    """Puts the module into evaluation mode."""

    def before_batch(self, step):
        self.session.handles[0].module.eval()


@mutant(f"{EQUAL}[adam]", passes=f"{EQUAL}[sgd_momentum]")
class ForgetsItsSteps(AveragingStrategy):
    """Makes Adam's bias correction begin anew in each step."""

    def before_step(self, optimizer):
        for entry in optimizer.state.values():
            if "step" in entry:
                entry["step"].zero_()


@mutant(f"{EQUAL}[adamw]", passes=f"{EQUAL}[adam]")
class ForgetsWeightDecay(AveragingStrategy):
    """Makes an optimizer of its own, without the user's weight decay."""

    def setup_optimizer(self, optimizer):
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0
        return optimizer


@mutant(f"{EQUAL}[adamw_fused]", passes=f"{EQUAL}[adamw]")
class MistakesFusedForScaled(AveragingStrategy):
    """Tells fused optimizers that their gradients have overflowed."""

    def before_step(self, optimizer):
        if optimizer.defaults.get("fused"):
            optimizer.found_inf = torch.tensor(1.0)


@mutant(f"{EQUAL}[scheduler_by_step]", passes=f"{EQUAL}[sgd_momentum]")
class StepsSchedulersTwice(AveragingStrategy):
    """Steps the scheduler that the core steps too, without declaring OWNS_SCHEDULER."""

    def after_step(self):
        for item in self.lr_schedulers:
            item.scheduler.step()


@mutant(f"{EQUAL}[scheduler_by_epoch]", passes=f"{EQUAL}[scheduler_by_step]")
class ForgetsEpochSchedulers(AveragingStrategy):
    """Keeps the schedulers that step after batches only."""

    @property
    def lr_schedulers(self):
        return [item for item in self.kept if item.interval == "step"]

    @lr_schedulers.setter
    def lr_schedulers(self, schedulers):
        self.kept = schedulers


@mutant(f"{EQUAL}[manual_optimization]", passes=f"{EQUAL}[sgd_momentum]")
class LeavesManualGradientsLocal(AveragingStrategy):
    """Exchanges gradients in its own backward only, not in the user's."""

    def average(self, manual):
        if not manual:
            super().average(manual)


@mutant(f"{EQUAL}[two_optimizers]", passes=f"{EQUAL}[manual_optimization]")
class KnowsOneOptimizer(AveragingStrategy):
    """Exchanges the gradients of the first optimizer's parameters."""

    def parameters(self):
        return [
            parameter for group in self.optimizers[0].param_groups for parameter in group["params"]
        ]


@mutant(f"{EQUAL}[sgd_momentum]")
class ReportsNoUpdate(AveragingStrategy):
    """Says that no step has updated parameters, so that the run never comes to its limit in
    steps.
    """

    def optimizer_step(self, optimizer, closure=None):
        super().optimizer_step(optimizer, closure)
        return False


@mutant(f"{EQUAL}[fabric_zeroed_gradients]", passes=f"{EQUAL}[fabric]")
class MistakesOldForNew(AveragingStrategy):
    """Doesn't average a gradient tensor that it has averaged before."""

    def average(self, manual):
        seen = self.__dict__.setdefault("seen", {})
        for name, parameter in enumerate(self.parameters()):
            if parameter.grad is not None and seen.get(name) is not parameter.grad:
                self.exchange(parameter.grad)
                seen[name] = parameter.grad


@mutant(f"{EQUAL}[sgd_momentum]")
class ReturnsTheScaledLoss(AveragingStrategy):
    """Reports the loss multiplied by the number of ranks; the weights are right."""

    def run_training_step(self, batch, batch_idx, step):
        output = super().run_training_step(batch, batch_idx, step)
        return StepOutput(
            output.loss * self.world_size, output.num_batches, output.num_optimizer_steps
        )


@mutant("test_trains_in_precision[bf16-mixed]", passes="test_trains_in_precision[32-true]")
class IgnoresAutocast(AveragingStrategy):
    """Runs the user's step outside of the precision's context."""

    def forward_context(self):
        return None


@mutant("test_trains_in_precision[64-true]", passes="test_trains_in_precision[bf16-mixed]")
class ForgetsToConvert(AveragingStrategy):
    """Leaves parameters in the format in which the user has made them."""

    def setup_module(self, module):
        self.model = module
        return module


@mutant("test_optimizer_state_equals_one_device", passes=f"{EQUAL}[adamw]")
class ScalesMoments(AveragingStrategy):
    """Divides moments by the number of ranks as it hands them out."""

    def get_optimizer_state_dict(self, optimizer):
        state = super().get_optimizer_state_dict(optimizer)
        halved = {
            name: {
                key: value / self.world_size if key == "exp_avg" else value
                for key, value in entry.items()
            }
            for name, entry in state["state"].items()
        }
        return {**state, "state": halved}


@mutant("test_ranks_compute_the_same_model", passes=f"{EQUAL}[sgd_momentum]")
class ForwardsAnOldModel(AveragingStrategy):
    """Gives ranks other than the first a copy of the model, which isn't trained, to call outside of
    training.
    """

    def step_callable(self, name, module=None):
        if name == "forward" and self.global_rank > 0:
            user = self.session.handle_of(module).module
            stale = copy.deepcopy(user)
            return lambda *inputs: user(*inputs) if torch.is_grad_enabled() else stale(*inputs)
        return super().step_callable(name, module)


@mutant("test_the_user_keeps_the_module")
class TrainsACopy(AveragingStrategy):
    """Trains a copy of the user's module."""

    def before_step(self, optimizer):
        self.before = [parameter.detach().clone() for parameter in self.parameters()]

    def after_step(self):
        with torch.no_grad():
            for parameter, old in zip(self.parameters(), self.before, strict=True):
                parameter.copy_(old)


@mutant("test_the_user_keeps_the_module", passes=f"{EQUAL}[sgd_momentum]")
class PatchesForward(AveragingStrategy):
    """Leaves a function of its own in the place of the module's forward."""

    def begun(self, module):
        module.forward = module.forward


@mutant("test_parameters_are_on_the_device")
class LosesTheModule(AveragingStrategy):
    """Keeps a handle of something else than the user's module."""

    def setup_optimizer(self, optimizer):
        handle = self.session.handle_of()
        handle.module = handle.wrapped = copy.deepcopy(handle.module)
        return optimizer


@mutant("test_trains_several_modules", passes=f"{EQUAL}[sgd_momentum]")
class KnowsTheLastModule(AveragingStrategy):
    """Exchanges gradients of the module that was set up last."""

    def parameters(self):
        return list(self.session.handles[-1].module.parameters())


@mutant("test_sets_up_everything_at_once")
class RefusesJointSetup(AveragingStrategy):
    """Declares JOINT_SETUP, and takes modules alone."""

    @property
    def capabilities(self):
        return super().capabilities | Capability.JOINT_SETUP

    def setup_module_and_optimizers(self, module, optimizers, scheduler=None):
        return self.setup_module(module), [], scheduler


@mutant("test_ranks_that_part_are_found", passes="test_sets_up_everything_at_once")
class TellsNoStep(RefusesJointSetup):
    """Keeps ranks alike, sets up everything at once, and tells its session of no step."""

    def replicas_of(self, tensor=None, name="", module=None):
        return ()

    def setup_module_and_optimizers(self, module, optimizers, scheduler=None):
        return self.setup_module(module), optimizers, scheduler


@mutant("test_validates", passes=f"{EQUAL}[sgd_momentum]")
class ValidatesInPart(AveragingStrategy):
    """Leaves out the first validation batch."""

    def step_callable(self, name, module=None):
        call = super().step_callable(name, module)
        if name != "validation_step":
            return call
        return lambda batch, batch_idx, *rest: call(batch, batch_idx, *rest) if batch_idx else None


@mutant("test_ranks_meet_before_the_model_is_used", passes="test_every_sample_comes_once_an_epoch")
class MeetsNowAndThen(AveragingStrategy):
    """Averages weights every fourth step, and not when they are saved, validated or done."""

    num_steps = 0

    def average(self, manual):
        pass

    def after_step(self):
        self.num_steps += 1
        if self.num_steps % 4 == 0:
            for parameter in self.parameters():
                parameter.data.copy_(self.reduce(parameter.data))


@mutant("test_losses_are_weighted[trainer-3]", passes="test_losses_are_weighted[trainer-1]")
class ForgetsToCorrect(AveragingStrategy):
    """Leaves the gradients of a window as they were before all weights of it were known."""

    def scale_gradients(self, optimizer, factor):
        pass


@mutant("test_losses_are_weighted[fabric-3]", passes="test_losses_are_weighted[trainer-1]")
class CorrectsWholeWindowsOnly(AveragingStrategy):
    """Forgets the weights of a window that is shorter than the others."""

    num_scaled = 0

    def scale_gradients(self, optimizer, factor):
        self.num_scaled += 1
        super().scale_gradients(optimizer, 1.0 if self.num_scaled % 2 == 0 else factor)


@mutant("test_losses_are_weighted[trainer-1]", passes=f"{EQUAL}[sgd_momentum]")
class WeighsItsOwnItems(AveragingStrategy):
    """Adds up weights over a group of one rank."""

    def reduce(self, tensor, group=None, reduce_op="mean"):
        return (
            tensor
            if reduce_op == "sum" and not tensor.ndim
            else super().reduce(tensor, group, reduce_op)
        )


@mutant("test_a_weight_is_refused", passes=f"{EQUAL}[sgd_momentum]")
class DeclaresWeightsTooLate(AveragingStrategy):
    """Declares that losses may have weights when a module was set up, and not before."""

    @property
    def capabilities(self):
        own = super().capabilities
        return (
            own
            if hasattr(self, "session") and self.session.handles
            else own & ~Capability.WEIGHTED_LOSSES
        )
