"""The logger for MLflow."""

from __future__ import annotations

import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import ConfigurationError, Logger
from core.loggers import flatten_names, to_scalar
from core.registry import require_package

if TYPE_CHECKING:
    import os
    from argparse import Namespace
    from collections.abc import Mapping

    from mlflow import MlflowClient
    from mlflow.entities import Metric

_MAX_METRICS = 1000
_MAX_PARAMS = 100
_MAX_SENDING = 8
_STATUSES = {"success": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_FOREIGN = re.compile(r"[^\w\-./: ]")


class MLFlowLogger(Logger):
    """Hands metrics to a tracking server or store of MLflow, in batches and from a thread of its
    own.

    Characters that MLflow refuses in names become underscores. Nested options are recorded as
    `model/width`.

    Args:
        experiment_name: made if it isn't there.
        run_name: for people; None lets MLflow invent one.
        tracking_uri: of the server or store: `"http://..."`, `"sqlite:///mlflow.db"`,
            `"file:./mlruns"` (recent releases want MLFLOW_ALLOW_FILE_STORE=true for it). None is
            MLflow's own choice: MLFLOW_TRACKING_URI.
        version: id of a run to continue; None makes a new one.
        save_dir: holds a folder `experiment_name/version` for what belongs to the run, such as
            checkpoints.
        tags: of a new run.
        artifact_location: of a new experiment; None is the server's choice.
        flush_interval_s: values that were logged within so many seconds go in one batch.

    Raises:
        ConfigurationError: the package mlflow is not installed.
    """

    def __init__(
        self,
        experiment_name: str = "core_logs",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        version: str | None = None,
        save_dir: str | os.PathLike[str] = ".",
        *,
        tags: Mapping[str, str] | None = None,
        artifact_location: str | None = None,
        flush_interval_s: float = 5.0,
    ) -> None:
        require_package("mlflow", user="MLFlowLogger", install="mlflow-skinny")
        self._experiment_name, self._run_name, self._tracking_uri = (
            experiment_name,
            run_name,
            tracking_uri,
        )
        self._run_id, self._save_dir = version, Path(save_dir).expanduser()
        self._tags, self._artifact_location = dict(tags or {}), artifact_location
        self._flush_interval_s = flush_interval_s
        self._client: MlflowClient | None = None
        self._waiting: list[Metric] = []
        self._waiting_since_s = 0.0
        # The library's own way to send in the background leaves threads behind, with which no
        # worker can be forked.
        self._sender: ThreadPoolExecutor | None = None
        self._sending: list[Future[None]] = []

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self._experiment_name

    @property
    def version(self) -> str:
        """Id of the run, which is made if there is none yet."""
        if self._run_id is None:
            self._run_id = self._make_run()
        return self._run_id

    @property
    def log_dir(self) -> str:
        """Folder for what belongs to the run and isn't sent, such as checkpoints. It may not exist
        yet.
        """
        return str(self._save_dir / self._experiment_name / self.version)

    @property
    def experiment(self) -> MlflowClient:
        """The client, for artifacts, models and the rest:
        `logger.experiment.log_artifact(logger.version, path)`.

        Raises:
            ConfigurationError: MLflow can't use the tracking URI.
        """
        if self._client is None:
            import mlflow

            try:
                self._client = mlflow.MlflowClient(self._tracking_uri)
            except Exception as error:
                # each store has errors of its own, those of missing packages included
                raise ConfigurationError(
                    "MLflow can't use the tracking URI "
                    f"{self._tracking_uri or mlflow.get_tracking_uri()!r}: {error}"
                ) from error
        return self._client

    def _make_run(self) -> str:
        run = self.experiment.create_run(
            self.experiment_id, run_name=self._run_name, tags=self._tags
        )
        return str(run.info.run_id)

    @property
    def experiment_id(self) -> str:
        """Id of the experiment, which is made if it isn't there."""
        from mlflow.exceptions import MlflowException

        found = self.experiment.get_experiment_by_name(self._experiment_name)
        if found is None:
            try:
                return str(
                    self.experiment.create_experiment(
                        self._experiment_name, self._artifact_location
                    )
                )
            except MlflowException:
                # Another run that begins now may have made it in between.
                found = self.experiment.get_experiment_by_name(self._experiment_name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record scalars: they are sent after `flush_interval_s`, without a wait.

        Raises:
            ConfigurationError: a value isn't one number.
        """
        from mlflow.entities import Metric

        now_s = time.time()
        if not self._waiting:
            self._waiting_since_s = now_s
        self._waiting += [
            Metric(_FOREIGN.sub("_", name), to_scalar(name, value), int(now_s * 1000), step)
            for name, value in metrics.items()
        ]
        if (
            len(self._waiting) >= _MAX_METRICS
            or now_s - self._waiting_since_s >= self._flush_interval_s
        ):
            self._send()

    def _send(self) -> None:
        """Hand what waits to the thread; wait for it only where it has fallen far behind."""
        waiting, self._waiting = self._waiting, []
        if self._sender is None:
            self._sender = ThreadPoolExecutor(1, thread_name_prefix="MLFlowLogger")
        for start in range(0, len(waiting), _MAX_METRICS):
            batch = waiting[start : start + _MAX_METRICS]
            self._sending.append(
                self._sender.submit(self.experiment.log_batch, self.version, metrics=batch)
            )
        while len(self._sending) > _MAX_SENDING:
            self._sending.pop(0).result()

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace) -> None:
        """Record the options."""
        from mlflow.entities import Param

        plain = [
            Param(_FOREIGN.sub("_", name), str(value))
            for name, value in flatten_names(params).items()
        ]
        for start in range(0, len(plain), _MAX_PARAMS):
            self.experiment.log_batch(self.version, params=plain[start : start + _MAX_PARAMS])

    def save(self) -> None:
        """Send what waits, and wait until all of it has arrived; what went wrong on the way is
        raised here.
        """
        if self._waiting:
            self._send()
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.shutdown()
        sending, self._sending = self._sending, []
        for batch in sending:
            batch.result()

    def finalize(self, status: str) -> None:
        """The stage is over: send the rest, and give the run its status."""
        if self._waiting or self._run_id is not None:
            self.save()
            self.experiment.set_terminated(self.version, _STATUSES[status])

    def state_dict(self) -> dict[str, Any]:
        """The run's id."""
        return {"version": self._run_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue that run."""
        self._run_id = state["version"]

    def __getstate__(self) -> dict[str, Any]:
        # A client holds connections and threads; the copy opens its own, and nothing is sent twice.
        return {**self.__dict__, "_client": None, "_waiting": [], "_sender": None, "_sending": []}
