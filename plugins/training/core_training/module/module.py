"""The user's model together with its steps."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from core.contract import ModuleError, did_you_mean, empty_hook
from core_training.hooks.data_hooks import DataHooks
from core_training.hparams.hyperparameters import HasHyperparameters
from core_training.module.misuse import ClassOnlyMethod, unnamed
from core_training.module.module_hooks import ModuleHooks
from core_training.module.module_steps import ModuleSteps
from core_training.settings.warn_at import warn_caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.optim import Optimizer

    from core.contract import Logger, PathLike
    from core_training.views.trainer_views import TrainerViews


T = TypeVar("T", bound="Module")


class _Detached:
    """The numbers of a module that no trainer runs."""

    current_epoch = 0
    global_step = 0
    global_rank = 0
    local_rank = 0
    logger = None
    loggers = ()


class Module(nn.Module, ModuleHooks, ModuleSteps, DataHooks, HasHyperparameters):
    """An `nn.Module` that knows how it is trained. Meant to be subclassed.

    `training_step` and `configure_optimizers` are all that `fit` needs. Any other `nn.Module` that
    has these methods can be trained as well; this class adds logging, hyperparameters, manual
    optimization, and the hooks' documentation.
    """

    automatic_optimization: bool = True
    """False if `training_step` runs backward and optimizers itself."""

    strict_loading: bool = True
    """False if a checkpoint may lack weights, or have more of them than the module."""

    example_input_array: Any = None
    """An input of `forward`: a tensor, or a tuple or dict of arguments. The summary finds shapes
    with it.
    """

    _trainer: TrainerViews | None = None

    # the user's own -------------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Compute the loss of one batch.

        Args:
            batch: what the loader gave, on the device.
            batch_idx: number of the batch in its epoch, from 0. May be left out of the signature.

        Returns:
            A scalar tensor with a graph; a dict with it under `"loss"`; or None to skip the batch.
            A dict may have a `"weight"`: the number of items that the loss is a mean over, a number
            or a tensor of one element, at least 0. The optimizer's gradient is then that of the
            mean over all items of its window, on all ranks, and logged means are over items.
        """
        raise NotImplementedError

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Evaluate one batch; log what should be known of it. No gradients are computed."""
        raise NotImplementedError

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Evaluate one batch of the test data; log what should be known of it. No gradients are
        computed.
        """
        raise NotImplementedError

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Predict for one batch. The default calls the module."""
        return self(batch)

    def configure_optimizers(self) -> Any:
        """Build optimizers and schedulers, from parameters that are on the device already.

        Returns:
            An optimizer; a list of them; (optimizers, schedulers); a dict with `"optimizer"`,
            perhaps `"lr_scheduler"` (a scheduler, or a dict with `"scheduler"`, `"interval"`,
            `"frequency"`, `"monitor"`) and `"monitor"`.
        """
        raise NotImplementedError

    @empty_hook
    def configure_model(self) -> None:
        """Build large parts here: it runs on the right device, and must do nothing the second
        time.
        """

    # while it is being trained --------------------------------------------------------------------

    @property
    def trainer(self) -> TrainerViews:
        """The trainer that runs this module. Before one has run it, all that is asked of it is a
        ConfigurationError.
        """
        if self._trainer is None:
            from core_training.module.misuse import NoTrainer  # who trains waits for none of it

            return NoTrainer(type(self).__name__)  # type: ignore[return-value]
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: TrainerViews) -> None:
        # Past nn.Module's own bookkeeping; a copy of the module has no trainer, see __getstate__.
        self.__dict__["_trainer"] = trainer

    def __getstate__(self) -> dict[str, Any]:
        return {
            key: value
            for key, value in super().__getstate__().items()  # type: ignore[no-untyped-call]
            if key != "_trainer"
        }

    @ClassOnlyMethod
    def load_from_checkpoint(
        cls: type[T],
        checkpoint_path: PathLike,
        map_location: Any = None,
        strict: bool | None = None,
        *,
        hparams_file: PathLike | None = None,
        **arguments: Any,
    ) -> T:
        """Make the module again, with its hyperparameters and weights. Nothing in the file is
        executed.

        Args:
            checkpoint_path: what a Trainer has saved; a local path or a URL.
            map_location: the device for the module; None is the CPU.
            strict: whether the weights must fit exactly; None is what `strict_loading` says.
            hparams_file: a local file with hyperparameters, for a checkpoint without them: `.json`
                as CSVLogger writes it, or `.yaml`, for which PyYAML has to be installed. They count
                in place of the checkpoint's.
            arguments: of `__init__`, in place of the hyperparameters of the checkpoint, or besides
                them.

        Returns:
            A new module. A call on an existing one is an error, since that one wouldn't change.

        Raises:
            ModuleError: an argument of `__init__` is missing, or not known.
            CheckpointError: the file can't be read, or doesn't fit.
            ConfigurationError: `hparams_file` can't be read.
        """
        # who reads no checkpoint waits for none of it
        from core_training.hparams.from_checkpoint import load_module

        return load_module(  # type: ignore[no-any-return]
            cls, checkpoint_path, map_location, strict, arguments, hparams_file
        )

    @property
    def current_epoch(self) -> int:
        """Number of the running epoch, from 0; 0 without a trainer."""
        return (self._trainer or _Detached).current_epoch

    @property
    def global_step(self) -> int:
        """Optimizer steps so far; 0 without a trainer."""
        return (self._trainer or _Detached).global_step

    @property
    def global_rank(self) -> int:
        """Number of this process among all; 0 without a trainer."""
        return (self._trainer or _Detached).global_rank

    @property
    def local_rank(self) -> int:
        """Number of this process on its node; 0 without a trainer."""
        return (self._trainer or _Detached).local_rank

    @property
    def logger(self) -> Logger | None:
        """The trainer's first logger, if there is one; None without a trainer."""
        return (self._trainer or _Detached).logger

    @property
    def loggers(self) -> Sequence[Logger]:
        """All loggers of the trainer."""
        return (self._trainer or _Detached).loggers

    @property
    def device(self) -> torch.device:
        """The device of the parameters; the CPU for a module without any."""
        for tensor in self.parameters():
            return tensor.device
        return torch.device("cpu")

    @property
    def device_mesh(self) -> Any:
        """The mesh of all devices with named axes; None without a trainer, or if the strategy has
        none.

        Ask for it in `configure_model`. A caller that gets its weights back from workers calls that
        without a mesh.
        """
        if self._trainer is None:
            return None
        return self._trainer.strategy.device_mesh

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first floating-point parameter; torch's default for a module without
        any.
        """
        for tensor in self.parameters():
            if tensor.is_floating_point():
                return tensor.dtype
        return torch.get_default_dtype()

    def log(
        self,
        name: str,
        value: Any = None,
        prog_bar: bool = False,
        logger: bool = True,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        sync_dist: bool | None = None,
        batch_size: int | None = None,
        add_dataloader_idx: bool = True,
        rank_zero_only: bool = False,
    ) -> None:
        """Record a value under a name. Does nothing while no trainer runs the module, and says so
        once.

        Args:
            name: under which loggers, callbacks and the progress bar find it.
            value: a number, a tensor with one element, or a torchmetrics `Metric`. Detached; no
                wait for the device.
            prog_bar: show it in the progress bar.
            logger: hand it to the loggers.
            on_step: record single steps. None: in training yes, in evaluation no.
            on_epoch: reduce over the epoch. None: in training no, in evaluation yes.
            reduce_fx: `"mean"` (weighted by batch size), `"sum"`, `"min"`, `"max"`.
            sync_dist: reduce over ranks too. None: for the epoch yes, since it costs two exchanges
                an epoch; for single steps no, since it would cost one a step.
            batch_size: samples in this batch, if neither the batch nor its first tensor's first
                dimension has it.
            add_dataloader_idx: with several evaluation loaders, append which one it was.
            rank_zero_only: the value of rank 0 counts alone.

        Raises:
            ModuleError: not a number, logged in another way before, or nothing is being collected
                now.
        """
        if not isinstance(name, str):
            raise unnamed(name)
        if self._trainer is None or not self._trainer.run.is_running:
            if not vars(self).get("_has_warned_of_log"):
                vars(self)["_has_warned_of_log"] = True
                warn_caller(
                    f"{type(self).__name__}: self.log({name!r}) records nothing, since no Trainer "
                    "runs the module."
                )
            return
        options = (prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, rank_zero_only)
        # torch traces this: the graph is interrupted here, since recording is no part of it
        if is_compiling():
            from core_training.module.uncompiled import record

            record(self, name, value, options, batch_size, add_dataloader_idx)
        else:
            self._trainer.run.metrics.log(name, value, options, batch_size, add_dataloader_idx)

    def log_dict(self, values: Mapping[str, Any], **options: Any) -> None:
        """Record several values, or a torchmetrics `MetricCollection`; the options are those of
        `log`.
        """
        # Members of a collection share their states, and would be logged as copies otherwise.
        own = {}
        if hasattr(values, "compute_groups"):
            own = {"keep_base": False, "copy_state": False}
        for name, value in values.items(**own):
            self.log(name, value, **options)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on rank 0, without tearing the progress bar."""
        if self._trainer is None:
            print(*args, **kwargs)  # noqa: T201
        else:
            self._trainer.print(*args, **kwargs)

    def all_gather(self, data: Any, sync_grads: bool = False) -> Any:
        """All ranks. Stack tensors, also nested ones, over ranks; see `Fabric.all_gather`."""
        return self.trainer.fabric.all_gather(data, sync_grads=sync_grads)

    # manual optimization --------------------------------------------------------------------------

    def optimizers(self) -> Any:
        """The optimizer, or the list of them, whose `step` goes through the strategy."""
        return _single(self.trainer.wrapped_optimizers)

    def lr_schedulers(self) -> Any:
        """The scheduler, or the list of them; None if there is none. With manual optimization you
        step them.
        """
        return _single([item.scheduler for item in self.trainer.strategy.lr_schedulers]) or None

    def manual_backward(
        self, loss: Tensor, *, weight: float | Tensor | None = None, **kwargs: Any
    ) -> None:
        """Backward through the strategy, which scales and exchanges gradients.

        Args:
            loss: a scalar with a graph.
            weight: number of items that the loss is a mean over, see `Fabric.backward`. The values
                that a step logs are weighted by the `"weight"` that it returns.
            kwargs: of `Tensor.backward`.

        Raises:
            ModuleError: with automatic optimization, in which the loop calls backward.
        """
        trainer = self.trainer
        strategy = trainer.strategy
        step = trainer.running_step
        if step is not None and not step.manual:
            raise ModuleError(
                f"{type(self).__name__} calls self.manual_backward(loss) with automatic "
                "optimization, which calls backward for the loss that training_step returns. Leave "
                "the call out, or set self.automatic_optimization = False and step the optimizers "
                "in training_step."
            )
        if trainer.options.terminate_on_nan and weight != 0:
            from core_training.logging.non_finite_losses import refuse_non_finite

            what = f"{type(self).__name__}.manual_backward got"
            refuse_non_finite(loss, what, trainer.progress, trainer.progress.batch)
        # more or fewer samples than other ranks have
        if step is not None and step.weight is not None:
            if weight is None:
                loss = loss * step.weight
            elif not step.weight:
                weight = 0
        if step is not None and step.before_backward is not None:
            step.before_backward(loss)
        session = trainer.session
        wrapped = session.handle_of(self).wrapped
        if weight is None and session.weights is None:
            strategy.backward(loss, wrapped, manual=True, **kwargs)
        else:
            session.backward(
                loss, weight, lambda share: strategy.backward(share, wrapped, manual=True, **kwargs)
            )
        if step is not None and step.after_backward is not None:
            step.after_backward()

    def toggle_optimizer(self, optimizer: Optimizer) -> None:
        """Disable gradients of all other parameters than this optimizer's, until
        `untoggle_optimizer`.
        """
        self.untoggle_optimizer()
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self.__dict__["_toggled"] = toggled = [
            (each, each.requires_grad) for each in self.parameters() if id(each) not in own
        ]
        for parameter, _ in toggled:
            parameter.requires_grad = False

    def untoggle_optimizer(self, optimizer: Optimizer | None = None) -> None:
        """Undo `toggle_optimizer`."""
        for parameter, required in self.__dict__.pop("_toggled", ()):
            parameter.requires_grad = required

    @contextmanager
    def toggled_optimizer(self, optimizer: Optimizer) -> Iterator[None]:
        """A context in which only this optimizer's parameters require gradients."""
        self.toggle_optimizer(optimizer)
        try:
            yield
        finally:
            self.untoggle_optimizer()

    def freeze(self) -> None:
        """No parameter requires gradients any more, and the module is in evaluation mode."""
        self.requires_grad_(False)
        self.eval()

    def unfreeze(self) -> None:
        """All parameters require gradients, and the module is in training mode."""
        self.requires_grad_(True)
        self.train()


def require_method(module: object, name: str, purpose: str) -> Callable[..., Any]:
    """The module's own method of this name.

    Raises:
        ModuleError: it has none, or only the one of `Module` that says what to write.
    """
    kind = type(module).__name__
    if not isinstance(module, nn.Module):
        what = f"an object of type {kind}"
        if isinstance(module, type):
            what = f"the class {module.__name__} (did you mean {module.__name__}()?)"
        raise ModuleError(
            f"{purpose} got {what}; expected a core.Module, or another nn.Module, and then the "
            "loaders."
        )
    if not has_method(module, name):
        own = set(dir(type(module))) - set(dir(Module))
        hint = did_you_mean(name, own, cutoff=0.85)
        raise ModuleError(f"{kind} has no {name}(), which {purpose} needs. Define it.{hint}")
    return getattr(module, name)  # type: ignore[no-any-return]


def has_method(module: nn.Module, name: str) -> bool:
    """True if the module has a method of its own of this name."""
    method = getattr(module, name, None)
    return method is not None and getattr(method, "__func__", None) is not getattr(Module, name)


def _single(items: Sequence[Any]) -> Any:
    """The one that there is, or all of them."""
    if len(items) == 1:
        return items[0]
    return items
