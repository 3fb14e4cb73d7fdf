"""The training step that a strategy runs: the module's own, its loss, and the hooks around its
parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from core.contract import Capability, ModuleError, TrainingStep, UnsupportedError
from core.strategies import class_name
from core_training.hooks.argument_counts import call_with
from core_training.logging.non_finite_losses import loss_in, refuse_non_finite, weight_in
from core_training.loops.profiling import profile_parts
from core_training.module.module import require_method
from core_training.module.module_steps import apply_overrides
from core_training.module.optimization import evaluates_loss

if TYPE_CHECKING:
    from collections.abc import Callable

    from core_training.loops.fit_warnings import NoUpdateCheck
    from core_training.run import Run


class StepMaker:
    """Makes the training step of a fit; anew where modules have changed.

    Attributes:
        outputs: what `training_step` returned last.
    """

    def __init__(self, run: Run, no_update_check: NoUpdateCheck) -> None:
        self._run, self._no_update_check = run, no_update_check
        self._manual = not getattr(run.module, "automatic_optimization", True)
        self.outputs: object = None

    def make(self) -> TrainingStep:
        """All ranks. The step, which the run has from now on."""
        run, strategy, events = self._run, self._run.strategy, self._run.events
        owned, optimizers = strategy.capabilities, strategy.optimizers
        step = TrainingStep(
            compute_loss=self._make_compute_loss(),
            module=run.session.handle_of(run.module).wrapped,
            optimizers=optimizers,
            manual=self._manual,
            needs_closure=any(map(evaluates_loss, optimizers)),
            before_backward=events.hook("on_before_backward"),
            after_backward=events.hook("on_after_backward"),
            before_optimizer_step=events.hook("on_before_optimizer_step"),
            before_zero_grad=events.hook("on_before_zero_grad"),
        )
        if Capability.OWNS_ACCUMULATION not in owned:
            step.num_accumulated = run.accumulate_grad_batches
        if Capability.OWNS_CLIPPING not in owned:
            step.clipping = run.options.clipping
        apply_overrides(run, step)
        if len(optimizers) > 1 and not self._manual:
            from core_training.loops.joint_optimizer import join_optimizers  # most have one

            join_optimizers(step)
        profile_parts(run.profiler, step, strategy)
        run.running_step = step
        return step

    def _make_compute_loss(self) -> Callable[[object, int], Tensor | None]:
        run, strategy, progress = self._run, self._run.strategy, self._run.progress
        training_step = require_method(run.module, "training_step", "fit")
        step = strategy.step_callable("training_step", run.module)
        call = call_with(step, training_step, num_arguments=2)
        manual, unpack = self._manual, self._unpack
        has_stepped = manual or Capability.COMPILED_STEP in strategy.capabilities
        if has_stepped:
            unpack = self._unpack_stepped

        def compute(batch: object, batch_idx: int) -> Tensor | None:
            begun = progress.global_step
            output = call(batch, batch_idx)
            if not manual and progress.global_step != begun:
                raise ModuleError(
                    "training_step steps an optimizer, and so does the loop, for the loss that it "
                    "returns. Leave out backward(), step() and zero_grad(); or set "
                    "self.automatic_optimization = False, and call self.manual_backward(loss) "
                    "before them."
                )
            if (
                type(output) is Tensor
                and output.requires_grad
                and not output.ndim
                and not has_stepped
            ):
                self.outputs = output
                return output
            return unpack(output)

        def compute_in_context(batch: object, batch_idx: int) -> Tensor | None:
            with context:  # type: ignore[union-attr]
                return compute(batch, batch_idx)

        context = strategy.forward_context()
        compute_loss = compute if context is None else compute_in_context
        if not run.options.terminate_on_nan:
            return compute_loss
        what = f"{class_name(run.module)}.training_step returned"

        def compute_finite_loss(batch: object, batch_idx: int) -> Tensor | None:
            loss = compute_loss(batch, batch_idx)
            # a loss of weight 0 counts nowhere
            if loss is not None and weight_in(self.outputs) != 0:
                refuse_non_finite(loss, what, progress, batch_idx)
            return loss

        return compute_finite_loss

    def _unpack(self, output: object) -> Tensor | None:
        self.outputs = output
        if output is None:
            self._no_update_check.note_missing_loss()
            return None
        if (weight := weight_in(output)) is not None:
            if self._run.logged.train.held is None:
                raise ModuleError(
                    "training_step returned a loss with a weight, and gave none before in this "
                    "fit. Give one with each loss, or with none."
                )
            self._run.session.weigh(weight)
        loss = loss_in(output)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ModuleError(
                f"training_step returned {_describe(output)}; expected a scalar tensor, a dict "
                "with one under 'loss', or None to skip the batch."
            )
        if not loss.requires_grad and self._run.strategy.optimizers:
            raise ModuleError(
                "training_step returned a loss without a graph, so that nothing can be learned "
                "from it. Compute it from parameters that require gradients, outside of "
                "torch.no_grad(), and don't detach it."
            )
        return loss

    def _unpack_stepped(self, output: object) -> Tensor | None:
        if not self._manual and weight_in(output) is not None:
            raise UnsupportedError(
                "training_step returned a loss with a weight, and "
                f"{type(self._run.strategy).__name__} has stepped by then, in one compiled "
                "program. Leave the weight out, or use another strategy, such as ddp.",
                capability=Capability.WEIGHTED_LOSSES,
            )
        self.outputs = output
        loss = loss_in(output)
        return loss.detach() if isinstance(loss, Tensor) else None


def _describe(output: object) -> str:
    if isinstance(output, dict) and "loss" not in output:
        return f"a dict with {sorted(map(str, output))}"
    loss = loss_in(output)
    if isinstance(loss, Tensor):
        return f"a tensor of shape {tuple(loss.shape)}"
    return f"{type(output).__name__} {output!r}"[:120]
