"""The stages of a Trainer: what the user calls, and what a strategy asks in them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from core.contract import ConfigurationError
from core_training.views.trainer_views import TrainerViews

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from core.contract import PathLike, Stage
    from core_training.arguments.module_callbacks import ModuleCallbacks
    from core_training.hooks.callback import Callback
    from core_training.loops.fit_call import FitCall
    from core_training.settings.resume import Resume
    from core_training.stage_data.datamodule import DataModule
    from core_training.stage_data.sources import Role, Source


class TrainerStages(TrainerViews):
    """The part of `Trainer` that runs stages."""

    _module_callbacks: ModuleCallbacks

    # what the user calls --------------------------------------------------------------------------

    def fit(
        self,
        model: nn.Module,
        train_dataloaders: object = None,
        val_dataloaders: object = None,
        datamodule: DataModule | None = None,
        ckpt_path: PathLike | None = None,
        *,
        resume: str | Collection[str] | Resume = "all",
    ) -> None:
        """Train, and validate in between.

        Loaders that aren't passed are those of the data module, or else of the module, if they have
        hooks for them.

        Args:
            model: a `core.Module`, or any `nn.Module` with `training_step` and
                `configure_optimizers`.
            train_dataloaders: a loader, or any iterable of batches; several in a dict, a list or a
                `CombinedLoader`. A DataModule may stand here.
            val_dataloaders: one or several of them; without any, there is no validation.
            datamodule: makes all loaders.
            ckpt_path: a checkpoint from which to go on. At a limit of this run, a line says that
                nothing is trained.
            resume: the parts of it to go on with, see `core.trainer.Resume`; with `"weights"` a run
                begins at step 0.

        Raises:
            ModuleError: the module lacks what training needs.
            ConfigurationError: no training loader, or something that is none.
            CheckpointError: `ckpt_path` can't be read, doesn't fit, or lies past a limit of this
                run.
        """
        from core_training.loops.launch import launch

        parts = None
        if resume != "all":
            from core_training.settings.resume import Resume  # few take parts

            parts = Resume.of(resume, ckpt_path)
        call = self.check_fit_call(model, train_dataloaders, val_dataloaders, datamodule)
        self._begin(
            "fit",
            call.module,
            call.sources,
            datamodule=call.datamodule,
            ckpt_path=ckpt_path,
            resume=parts,
            is_asked_to_stop=False,
        )
        launch(self.run, call.sources)

    def validate(
        self,
        model: nn.Module | None = None,
        dataloaders: object = None,
        datamodule: DataModule | None = None,
        ckpt_path: PathLike | None = None,
        verbose: bool = True,
    ) -> list[dict[str, float]]:
        """Run `validation_step` over one or several loaders.

        Args:
            model: with `validation_step`; None is the one that this Trainer ran last, with the
                weights that it has.
            dataloaders: one or several; if None, those of the data module or the module.
            datamodule: makes them.
            ckpt_path: a checkpoint whose weights are to be used.
            verbose: let the progress bar print the results.

        Returns:
            What was logged, a dict for each loader.
        """
        from core_training.stage_data.sources import VALIDATION

        return self._evaluate(  # type: ignore[return-value]
            VALIDATION, model, dataloaders, datamodule, ckpt_path=ckpt_path, prints_results=verbose
        )

    def test(
        self,
        model: nn.Module | None = None,
        dataloaders: object = None,
        datamodule: DataModule | None = None,
        ckpt_path: PathLike | None = None,
        verbose: bool = True,
    ) -> list[dict[str, float]]:
        """Run `test_step` over one or several loaders; see `validate`."""
        from core_training.stage_data.sources import TEST

        return self._evaluate(  # type: ignore[return-value]
            TEST, model, dataloaders, datamodule, ckpt_path=ckpt_path, prints_results=verbose
        )

    def predict(
        self,
        model: nn.Module | None = None,
        dataloaders: object = None,
        datamodule: DataModule | None = None,
        return_predictions: bool | None = None,
        ckpt_path: PathLike | None = None,
    ) -> list[Any] | None:
        """Run `predict_step` over one or several loaders.

        Args:
            model: with `predict_step`; that of `core.Module` calls the module. None is the one that
                this Trainer ran last.
            dataloaders: one or several; if None, those of the data module or the module.
            datamodule: makes them.
            return_predictions: collect what `predict_step` returns; None is True. False saves the
                memory, for a `BasePredictionWriter` of core-predictions.
            ckpt_path: a checkpoint whose weights are to be used.

        Returns:
            What `predict_step` returned, a list of batches on the CPU; with several loaders a list
            of such lists. On rank 0, and so for the caller of every launcher, those of all ranks in
            the order of the data set, as on one device; on the other ranks their own. None with
            `return_predictions=False`.
        """
        from core_training.stage_data.sources import PREDICTION

        return self._evaluate(  # type: ignore[return-value]
            PREDICTION,
            model,
            dataloaders,
            datamodule,
            ckpt_path=ckpt_path,
            returns_predictions=return_predictions is not False,
        )

    def _evaluate(
        self,
        role: Role,
        model: nn.Module | None,
        loaders: object,
        datamodule: DataModule | None,
        **settings: object,
    ) -> object:
        from core_training.arguments.loader_arguments import check_sources
        from core_training.loops.launch import launch
        from core_training.module.module import require_method

        module: Any = self.module if model is None else model
        if module is None:
            raise ConfigurationError(
                "No model was given, and this Trainer has run none before. Pass one."
            )
        stage = role.stage
        # that of `core.Module` will do
        if stage != "predict" or not hasattr(module, "predict_step"):
            require_method(module, role.step, stage)
        sources, datamodule = check_sources(role, module, loaders, datamodule)
        self._begin(stage, module, sources, datamodule=datamodule, resume=None, **settings)
        return launch(self.run, sources)

    def check_fit_call(
        self,
        model: nn.Module,
        train_dataloaders: object,
        val_dataloaders: object,
        datamodule: DataModule | None,
    ) -> FitCall:
        """The arguments of `fit`, checked."""
        from core_training.arguments.loader_arguments import check_fit_call
        from core_training.module.module import require_method
        from core_training.module.optimization import require_optimizers

        require_method(model, "training_step", "fit")
        require_optimizers(model, self.strategy)
        return check_fit_call(self.options, model, train_dataloaders, val_dataloaders, datamodule)

    def check_copied_fit(self, who: str, module: nn.Module) -> None:
        """Refuse modules and strategies with which `fit_on_copies` can't be.

        Args:
            who: the class that asks for it.
            module: the user's own.

        Raises:
            ConfigurationError: the module steps its optimizers itself.
            UnsupportedError: the strategy's engine or shards can't be taken apart from a run.
        """
        from core_training.copies.copied_fit import check_copied_fit

        check_copied_fit(who, self.strategy, module)

    def fit_on_copies(self, call: FitCall, callback: Callback, *, max_steps: int) -> None:
        """Run `fit` on copies for so many optimizer steps. What the callback has found is in the
        callback itself.

        This Trainer, its loggers and callbacks, the module, the positions of loaders and the random
        state stay as they are. A callback's `before_fit` may call it.

        Raises:
            ConfigurationError: something can't be copied.
        """
        from core_training.copies.copied_fit import fit_on_copies

        fit_on_copies(self, call, callback, max_steps=max_steps)

    def _begin(
        self, stage: Stage, module: nn.Module, sources: Sequence[Source], **settings: Any
    ) -> None:
        """Begin a new run, with backend, counters and metrics of the one before, whose optimizers
        are let go.
        """
        from core_training.stage_data.loaders import Loaders

        if self.run.is_running:
            raise ConfigurationError(
                f"trainer.{stage}() was called while trainer.{self.run.stage}() runs: one Trainer "
                "does one thing at a time, and its progress would be lost. Call it after that has "
                "ended, or on another Trainer."
            )
        own = self.fabric.uncompiled(module)
        self.run = replace(
            self.run,
            trainer=self,
            stage=stage,
            module=own,
            callbacks=self._module_callbacks.join(self.callbacks, own),
            loaders=Loaders(self.options, sources),
            counts_on=own is self.run.module and self.progress.total_batches > 0,
            **settings,
        )

    # what the strategy asks (core.contract.SetupHost) ---------------------------------------------

    def configure_model(self) -> None:
        """All ranks. Call the module's `configure_model`, which builds large layers."""
        from core_training.loops import set_up

        set_up.configure_model(self.run)

    def configure_optimizers(self) -> tuple[list[Optimizer], list[Any]]:
        """All ranks. The module's optimizers and schedulers, in one form."""
        from core_training.loops import set_up

        return set_up.configure_optimizers(self.run)

    def setup_dataloaders(self) -> None:
        """All ranks. Ask for the loaders of this stage, shard them and hand them to the
        strategy.
        """
        self.run.loaders.setup(self.strategy)

    def restore(self) -> None:
        """All ranks. Load the checkpoint that the user named, if any."""
        from core_training.loops import set_up

        set_up.restore(self.run)
