"""Lightning's arguments and methods for the loggers of services. Each stands before core's class,
in `_loggers`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from torch import nn

from core import ConfigurationError
from core_lightning.loggers._loggers import MissingPackageError, Prefixes

_SETTINGS = ("monitor", "mode", "save_last", "save_top_k", "save_weights_only")
"""Attributes of a ModelCheckpoint that are sent with what it has written."""


class TensorBoardLogger(Prefixes):
    """Event files in `lightning_logs/version_n`; see core-tensorboard.

    Args:
        log_graph: must be False: the graph can be added by `logger.experiment.add_graph`.
        default_hp_metric: record `hp_metric` with hyperparameters that come without metrics.
        sub_dir: must be None.
        options: go to `torch.utils.tensorboard.SummaryWriter`.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str] = ".",
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        if log_graph or sub_dir is not None:
            raise ConfigurationError(
                "TensorBoardLogger can't take log_graph=True or sub_dir=. Add the graph yourself, "
                "by logger.experiment.add_graph(module, example), and name a save_dir or version "
                "instead of a sub_dir."
            )
        if find_spec("tensorboard") is None:
            raise MissingPackageError(
                "TensorBoardLogger needs tensorboard: `pip install tensorboard`."
            )
        super().__init__(save_dir, name or "", version, **options)
        self._prefix, self._default_hp_metric = prefix, default_hp_metric

    def log_hyperparams(self, params: Any, metrics: Any = None, step: int | None = None) -> None:
        """Record options, and the metrics that tell runs with others apart.

        A number is that of `hp_metric`, and None is -1 unless `default_hp_metric` is False.
        """
        super().log_hyperparams(params)
        if metrics is None and self._default_hp_metric:
            metrics = -1
        if metrics is None:
            return
        if not isinstance(metrics, Mapping):
            metrics = {"hp_metric": metrics}
        self.log_metrics(metrics, step or 0)


class UploadsCheckpoints(Prefixes):
    """For loggers that take `log_model`. Stands before core's class.

    `"all"` sends each checkpoint when it is written; True sends those that are left when training
    ends, and each one where `save_top_k=-1` keeps all; False sends none.
    """

    def __init__(self, *, log_model: Literal["all"] | bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._log_model = log_model
        self._uploaded: dict[str, float] = {}
        self._to_upload: dict[int, Any] = {}

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Rank 0. A ModelCheckpoint has saved: send it, now or when training has ended."""
        if self._log_model:
            self._to_upload[id(checkpoint_callback)] = checkpoint_callback
        if self._log_model == "all" or (self._log_model and checkpoint_callback.save_top_k == -1):
            # what is written at an accumulation window's end has to wait
            self._upload(checkpoint_callback)

    def finalize(self, status: str) -> None:
        """The stage is over: send what is left, if it ended well."""
        waiting, self._to_upload = self._to_upload, {}
        if status == "success":
            for callback in waiting.values():
                self._upload(callback)
        super().finalize(status)

    def _upload(self, callback: Any) -> None:
        scores = {
            callback.last_model_path: callback.current_score,
            callback.best_model_path: callback.best_model_score,
            **callback.best_k_models,
        }
        found = sorted((os.stat(path).st_mtime, path) for path in scores if os.path.exists(path))
        for changed, path in found:
            if self._uploaded.get(path, 0.0) >= changed:
                continue
            score = scores[path]
            if score is not None:
                score = float(score)
            facts = {
                "score": score,
                "original_filename": Path(path).name,
                type(callback).__name__: {name: getattr(callback, name) for name in _SETTINGS},
            }
            aliases = ["latest"]
            if path == callback.best_model_path:
                aliases.append("best")
            self.upload(Path(path), facts, aliases)
            self._uploaded[path] = changed

    def upload(self, path: Path, facts: dict[str, Any], aliases: list[str]) -> None:
        """Send one checkpoint, a file or a folder, with what is known of it."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        # Callbacks stay in their process.
        return {**super().__getstate__(), "_to_upload": {}}


class WandbLogger(UploadsCheckpoints):
    """A run of Weights & Biases; see core-wandb.

    Args:
        version: id of the run.
        dir: another name of `save_dir`.
        id: another name of `version`.
        anonymous: None or False: W&B has given up anonymous runs.
        project: in which W&B lists the run; None is WANDB_PROJECT, or `lightning_logs`.
        checkpoint_name: of the artifacts; None is `model-` and the id.
        add_file_policy: `"immutable"` lets W&B read a checkpoint where it lies, without a copy.
        options: go to `wandb.init`.
    """

    def __init__(
        self,
        name: str | None = None,
        save_dir: str | os.PathLike[str] = ".",
        version: str | None = None,
        offline: bool = False,
        dir: str | os.PathLike[str] | None = None,  # Lightning's name
        id: str | None = None,  # Lightning's name
        anonymous: bool | None = None,
        project: str | None = None,
        log_model: Literal["all"] | bool = False,
        experiment: Any = None,
        prefix: str = "",
        checkpoint_name: str | None = None,
        add_file_policy: Literal["mutable", "immutable"] = "mutable",
        **options: Any,
    ) -> None:
        if offline and log_model:
            raise ConfigurationError(
                f"WandbLogger(offline=True, log_model={log_model!r}): a run that is offline can't "
                "send checkpoints. Drop one of the two."
            )
        if anonymous:
            raise ConfigurationError(
                "WandbLogger(anonymous=True): W&B has no anonymous runs any more. Drop it."
            )
        super().__init__(
            log_model=log_model,
            project=project or os.environ.get("WANDB_PROJECT", "lightning_logs"),
            name=name,
            version=version or id,
            save_dir=save_dir or dir or ".",
            offline=offline,
            experiment=experiment,
            **options,
        )
        self._prefix, self._folder = prefix, os.fspath(save_dir or dir or ".")
        self._checkpoint_name, self.add_file_policy = checkpoint_name, add_file_policy

    save_dir = property(attrgetter("_folder"), doc="Folder of W&B's own files.")

    def watch(
        self,
        model: nn.Module,
        log: str | None = "gradients",
        log_freq: int = 100,
        log_graph: bool = True,
    ) -> None:
        """Record gradients, parameters or both (`"all"`) as histograms, every `log_freq`
        batches.
        """
        self.experiment.watch(model, log=log, log_freq=log_freq, log_graph=log_graph)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record metrics, or what else W&B takes as a value."""
        if step is None:
            self.experiment.log(self.prefixed(metrics))
        else:
            super().log_metrics(metrics, step)

    def log_table(
        self,
        key: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Record a table, of columns and rows or of a DataFrame."""
        import wandb

        self.log_metrics({key: wandb.Table(columns=columns, data=data, dataframe=dataframe)}, step)

    log_text = log_table

    def log_image(
        self, key: str, images: list[Any], step: int | None = None, **options: list[Any]
    ) -> None:
        """Record images: tensors, arrays, PIL's or paths. `options` are lists, such as `caption`,
        with one each.
        """
        self._log_media("Image", key, images, step, options)

    def log_audio(
        self, key: str, audios: list[Any], step: int | None = None, **options: list[Any]
    ) -> None:
        """Record sounds: arrays or paths. `options` are lists, such as `sample_rate`, with one for
        each.
        """
        self._log_media("Audio", key, audios, step, options)

    def log_video(
        self, key: str, videos: list[Any], step: int | None = None, **options: list[Any]
    ) -> None:
        """Record videos: arrays or paths. `options` are lists, such as `fps`, with one for each."""
        self._log_media("Video", key, videos, step, options)

    def _log_media(
        self,
        kind: str,
        key: str,
        items: list[Any],
        step: int | None,
        options: Mapping[str, list[Any]],
    ) -> None:
        import wandb

        if not isinstance(items, list):
            raise TypeError(
                f"{key}: expected a list of {kind.lower()}s, got {type(items).__name__}."
            )
        make, made = getattr(wandb, kind), []
        for item, *values in zip(items, *options.values(), strict=True):
            made.append(make(item, **dict(zip(options, values, strict=True))))
        self.log_metrics({key: made}, step)

    def use_artifact(self, artifact: str, artifact_type: str | None = None) -> Any:
        """The artifact of that path, which the run is recorded to use."""
        return self.experiment.use_artifact(artifact, type=artifact_type)

    @staticmethod
    def download_artifact(
        artifact: str,
        save_dir: str | os.PathLike[str] | None = None,
        artifact_type: str | None = None,
        use_artifact: bool | None = True,
    ) -> str:
        """Path of the artifact's files, which are downloaded; an open run is recorded to use
        them.
        """
        import wandb

        if wandb.run is not None and use_artifact:
            found = wandb.run.use_artifact(artifact)
        else:
            found = wandb.Api().artifact(artifact, type=artifact_type)
        return str(found.download(root=save_dir and os.fspath(save_dir)))

    def upload(self, path: Path, facts: dict[str, Any], aliases: list[str]) -> None:
        """Send one checkpoint as an artifact of type `model`."""
        import wandb

        name = self._checkpoint_name or f"model-{self.version}"
        artifact = wandb.Artifact(name=name, type="model", metadata=facts)
        add = artifact.add_file
        if path.is_dir():
            add = artifact.add_dir
        add(str(path), name="model.ckpt", policy=self.add_file_policy)
        self.experiment.log_artifact(artifact, aliases=aliases)


class MLFlowLogger(UploadsCheckpoints):
    """A run of MLflow; see core-mlflow.

    Args:
        tracking_uri: of the server or store; None is MLFLOW_TRACKING_URI, or files in `save_dir`.
        run_id: of a run to continue.
        synchronous: True waits at each call until its values have arrived.
    """

    def __init__(
        self,
        experiment_name: str = "lightning_logs",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        tags: Mapping[str, Any] | None = None,
        save_dir: str | None = "./mlruns",
        log_model: Literal["all"] | bool = False,
        prefix: str = "",
        artifact_location: str | None = None,
        run_id: str | None = None,
        synchronous: bool | None = None,
    ) -> None:
        tracking_uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"file:{save_dir}"
        self.save_dir = None
        if tracking_uri.startswith("file:"):
            self.save_dir = tracking_uri.removeprefix("file:")
        super().__init__(
            log_model=log_model,
            experiment_name=experiment_name,
            run_name=run_name,
            tracking_uri=tracking_uri,
            version=run_id,
            save_dir=self.save_dir or ".",
            tags=tags,
            artifact_location=artifact_location,
        )
        self.tags, self._prefix, self._synchronous = tags, prefix, bool(synchronous)

    name = property(
        lambda self: str(self.experiment_id), doc="Id of the experiment, made if it isn't there."
    )
    run_id = property(
        lambda self: str(self.version), doc="Id of the run, which is made if there is none yet."
    )

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record numbers; what is text is left out."""
        numbers = {name: value for name, value in metrics.items() if not isinstance(value, str)}
        super().log_metrics(numbers, step or 0)
        if self._synchronous:
            self.save()

    def upload(self, path: Path, facts: dict[str, Any], aliases: list[str]) -> None:
        """Send one checkpoint, with `metadata.yaml` and `aliases.txt` beside it."""
        send = self.experiment.log_artifact
        if path.is_dir():
            send = self.experiment.log_artifacts
        send(self.run_id, str(path), path.stem)
        with tempfile.TemporaryDirectory() as folder:
            # JSON is YAML
            Path(folder, "metadata.yaml").write_text(json.dumps(facts), encoding="utf-8")
            Path(folder, "aliases.txt").write_text(str(aliases), encoding="utf-8")
            self.experiment.log_artifacts(self.run_id, folder, path.stem)


class CometLogger(Prefixes):
    """An experiment of Comet; see core-comet.

    Args:
        experiment_key: of an experiment to continue.
        mode: `"get_or_create"`, the only one.
        online: False writes an archive and sends nothing.
        options: go to `comet_ml.ExperimentConfig`; `offline_directory` is where archives go.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        workspace: str | None = None,
        project: str | None = None,
        experiment_key: str | None = None,
        mode: str | None = None,
        online: bool | None = None,
        prefix: str | None = None,
        **options: Any,
    ) -> None:
        if mode not in (None, "get_or_create"):
            raise ConfigurationError(f"CometLogger(mode={mode!r}): only 'get_or_create' is there.")
        if api_key is not None:
            os.environ["COMET_API_KEY"] = api_key
        super().__init__(
            project=project or "general",
            name=options.pop("name", None),
            version=experiment_key,
            save_dir=options.pop("offline_directory", "."),
            offline=online is False,
            workspace=workspace,
            **options,
        )
        self._prefix = prefix or ""
