"""One call that makes a program's command line of the types of its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core import Callback, Trainer, seed_everything
from core_jsonargparse.arguments import Arguments, stage_options
from core_jsonargparse.configured_optimizers import give_optimizers
from core_jsonargparse.saved_config import SavedConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from core import DataModule


@dataclass(frozen=True)
class ConfiguredRun:
    """The parts that a command line has made, and what its stage has returned.

    Attributes:
        trainer: made of the section `trainer`.
        module: made of the section `model`.
        datamodule: made of the section `data`; None if there is none.
        config: all values by section, as parsed: nothing is made of them here.
        result: of the stage: None of `fit`, metrics of `validate` and `test`, predictions of
            `predict`.
    """

    trainer: Trainer
    module: nn.Module
    datamodule: DataModule | None
    config: Any
    result: Any = None


def cli_for(
    module: type[nn.Module] | None = None,
    datamodule: type[DataModule] | None = None,
    *,
    subclasses: bool = False,
    trainer_defaults: Mapping[str, Any] | None = None,
    configure: Callable[[Any], None] | None = None,
    save_config: bool = True,
    overwrite_config: bool = False,
    args: Sequence[str] | None = None,
    run: bool = True,
) -> ConfiguredRun:
    """Read command line and config files, make trainer, module and data module, and run the stage.

    The first argument of the program is the stage: `fit`, `validate`, `test` or `predict`. The
    others are those of Trainer (`--trainer.max_epochs`), the module's `__init__` (`--model.width`),
    the data module's (`--data.batch_size`) and the stage (`--ckpt_path`), by their type hints;
    `--config` reads them from a YAML file, and `--print_config` prints one. A module without
    `configure_optimizers` is given `--optimizer` and `--lr_scheduler`.

    Args:
        module: class of the module; None for any `core.Module`, which the config names
            (`model.class_path`).
        datamodule: class of the data module; None for any, or none.
        subclasses: let the config name subclasses of both.
        trainer_defaults: arguments of Trainer in place of its own defaults.
        configure: called with the jsonargparse parser of each stage, to add arguments, set
            defaults, and `parser.link_arguments("data.batch_size", "model.batch_size")`.
        save_config: write the whole config to `config.yaml` in `trainer.log_dir` when `fit` begins,
            on rank 0.
        overwrite_config: let it replace that of another run. Without it, that is an error.
        args: in place of the program's own arguments.
        run: False to make everything and run nothing; `args` then begin without a stage.

    Returns:
        What was made, and the stage's result.

    Raises:
        ConfigurationError: options that can't be met.
        SystemExit: an argument that isn't known, or of another type; the message is on stderr.
    """
    arguments = Arguments(module, datamodule, subclasses, trainer_defaults or {}, configure)
    stage, parser, config = _parse(arguments, args, run=run)
    if config.seed_everything is not False:
        seed_everything(0 if config.seed_everything is True else config.seed_everything)
    made = parser.instantiate(config)
    give_optimizers(made.model, config)
    text = parser.dump(config, skip_unset=False) if save_config else None
    trainer = _make_trainer(made.trainer.as_dict(), text, overwrite=overwrite_config)
    result = None
    if stage is not None:
        result = getattr(trainer, stage)(
            made.model, datamodule=made.get("data"), **stage_options(stage, config)
        )
    return ConfiguredRun(trainer, made.model, made.get("data"), config, result)


def _parse(
    arguments: Arguments, args: Sequence[str] | None, *, run: bool
) -> tuple[str | None, Any, Any]:
    """The stage, its parser, and its values."""
    if not run:
        parser = arguments.stage_parser(None)
        return None, parser, parser.parse_args(args)
    whole, stages = arguments.parser()
    config = whole.parse_args(args)
    return config.stage, stages[config.stage], config[config.stage]


def _make_trainer(options: dict[str, Any], text: str | None, *, overwrite: bool) -> Trainer:
    if text is not None and not options["fast_dev_run"] and not options["barebones"]:
        given = options["callbacks"]
        if given is None:
            given = []
        own = [given] if isinstance(given, str | Callback) else list(given)
        options["callbacks"] = [*own, SavedConfig(text, overwrite=overwrite)]
    return Trainer(**options)
