"""The prelude `core-compare`: in each rank, before the program, it gives its Trainer or Fabric the
contender.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core import Callback, ConfigurationError
from core_plan.arguments import replace_arguments
from core_plan.compared.recorder import RunRecorder, samples_in
from core_plan.compared.task import VARIABLE, Task
from core_plan.contender import Contender
from core_plan.silence import kept_callbacks, silent_loggers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from torch import nn

    from core import Fabric, Trainer

__all__ = ["begin"]


def begin() -> None:
    """Compare this process's program as its task says. `core compare` starts it.

    Raises:
        ConfigurationError: it wasn't.
    """
    from core import Fabric, Trainer, seed_everything

    task = Task.read()
    if task is None:
        raise ConfigurationError(
            f"The prelude core-compare is for the processes that `core compare` starts: {VARIABLE} "
            "isn't set. Use `core compare train.py --strategies ddp,fsdp`."
        )
    seed_everything(task.seed)
    contender, recorder, in_trainer = Contender.parse(task.contender), RunRecorder(task), [False]

    def strategy_in_trainer(given: object) -> object:
        in_trainer[0] = True
        return contender.make()

    def made_fabric(fabric: Fabric, given: Mapping[str, Any]) -> None:
        if not in_trainer[0]:
            _record_fabric(fabric, recorder)

    def made_trainer(trainer: Trainer, given: Mapping[str, Any]) -> None:
        in_trainer[0] = False

    place = {"devices": task.devices, "num_nodes": task.num_nodes}
    replace_arguments(
        Fabric,
        {
            "strategy": lambda given: given if in_trainer[0] else contender.make(),
            "loggers": silent_loggers,
            **place,
        },
        made_fabric,
    )
    replace_arguments(
        Trainer,
        {
            "strategy": strategy_in_trainer,
            "logger": silent_loggers,
            "callbacks": lambda given: [*kept_callbacks(given), TrainerRecorder(recorder)],
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "barebones": False,
            "profiler": None,
            "num_sanity_val_steps": 0,
            **({"global_batch_size": task.global_batch_size} if task.global_batch_size else {}),
            **place,
        },
        made_trainer,
    )


class TrainerRecorder(Callback):
    """Passes the steps of the first `fit` on to a recorder."""

    runs_last = True

    def __init__(self, recorder: RunRecorder) -> None:
        self._recorder = recorder
        self._step = 0

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Set-up is over."""
        self._step = trainer.global_step
        self._recorder.begin(
            trainer.strategy, [module], lambda: [trainer.weights()], trainer.save_checkpoint
        )

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch, and the step if it has ended one."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._recorder.add_batch(loss, samples_in(batch))
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            self._recorder.end_step()

    def on_validation_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Validation isn't timed."""
        if trainer.stage == "fit":
            self._recorder.pause()

    def on_validation_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Training goes on."""
        if trainer.stage == "fit":
            self._recorder.go_on()

    def on_train_end(self, trainer: Trainer, module: nn.Module) -> None:
        """The program's own limit has come first."""
        self._recorder.end()


def _record_fabric(fabric: Any, recorder: RunRecorder) -> None:
    """Pass the steps of a loop by hand on to a recorder: those of the optimizer that was set up
    first.
    """
    modules: list[nn.Module] = []
    optimizers: list[torch.optim.Optimizer] = []
    size = [1]
    setup, wrap_optimizer, backward, step = (
        fabric.setup,
        fabric.wrap_optimizer,
        fabric.backward,
        fabric.step,
    )

    def begin() -> None:
        if recorder.strategy is None:
            state = {
                **{f"model{number}": module for number, module in enumerate(modules)},
                **{f"optimizer{number}": optimizer for number, optimizer in enumerate(optimizers)},
            }
            streams: Callable[[], Any] = lambda: [fabric.weights(module) for module in modules]  # noqa: E731
            recorder.begin(fabric.strategy, modules, streams, lambda path: fabric.save(path, state))

    def see(module: nn.Module, args: Any, kwargs: Any) -> None:
        if module.training:
            size[0] = samples_in([args, kwargs])

    def new_setup(module: nn.Module, *given: Any, **options: Any) -> Any:
        result = setup(module, *given, **options)
        model = result[0] if isinstance(result, tuple) else result
        model.register_forward_pre_hook(see, with_kwargs=True)
        modules.append(module)
        return result

    def new_wrap(optimizer: Any, on_step: Any = None, before_step: Any = None) -> Any:
        is_first = not optimizers

        def before(inner: Any) -> None:
            begin()
            if before_step is not None:
                before_step(inner)

        def after(updated: int) -> None:
            if on_step is not None:
                on_step(updated)
            recorder.end_step()

        wrapped = wrap_optimizer(
            optimizer, after if is_first else on_step, before if is_first else before_step
        )
        optimizers.append(wrapped)
        return wrapped

    def new_backward(tensor: torch.Tensor, *args: Any, **options: Any) -> None:
        backward(tensor, *args, **options)
        recorder.add_batch(tensor, size[0])

    def new_step(model: nn.Module, batch: Any, loss_fn: Any) -> Any:
        fabric.backward = backward
        try:
            loss = step(model, batch, loss_fn)
        finally:
            fabric.backward = new_backward
        recorder.add_batch(loss, samples_in(batch))
        return loss

    fabric.setup, fabric.wrap_optimizer, fabric.backward, fabric.step = (
        new_setup,
        new_wrap,
        new_backward,
        new_step,
    )
