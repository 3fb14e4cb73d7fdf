"""The logger that writes event files for TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.loggers import RunFolderLogger, flatten_names, to_scalar
from core.registry import require_package

if TYPE_CHECKING:
    import os
    from argparse import Namespace
    from collections.abc import Mapping

    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLogger(RunFolderLogger):
    """Writes event files with torch's own writer, and `hparams.json`.
    `tensorboard --logdir core_logs` shows them.

    Args:
        save_dir: holds the experiments.
        name: of the experiment, a folder in `save_dir`.
        version: of this run; by default the next number that is free. One that is there already is
            continued.
        options: go to `torch.utils.tensorboard.SummaryWriter`, such as `flush_secs=10`.

    Raises:
        ConfigurationError: the package tensorboard is not installed.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str] = ".",
        name: str = "core_logs",
        version: int | str | None = None,
        **options: Any,
    ) -> None:
        require_package("tensorboard", user="TensorBoardLogger", install="tensorboard")
        super().__init__(save_dir, name, version)
        self._options = options
        self._writer: SummaryWriter | None = None

    @property
    def experiment(self) -> SummaryWriter:
        """The writer of torch, for images, histograms and the rest. The event file is opened at the
        first use.
        """
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder()), **self._options)
        return self._writer

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record scalars.

        Raises:
            ConfigurationError: a value isn't one number.
        """
        for name, value in metrics.items():
            self.experiment.add_scalar(name, to_scalar(name, value), step)

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace) -> None:
        """Record the options for TensorBoard, and in `hparams.json`. What isn't plain is shown as
        text.
        """
        from torch.utils.tensorboard.summary import hparams

        super().log_hyperparams(params)
        shown = (bool, int, float, str)
        plain = {
            name: value if isinstance(value, shown) else str(value)
            for name, value in flatten_names(params).items()
        }
        for summary in hparams(plain, {}):
            self.experiment._get_file_writer().add_summary(summary)

    def save(self) -> None:
        """Flush what is buffered."""
        if self._writer is not None:
            self._writer.flush()

    def finalize(self, status: str) -> None:
        """The run is over: close the event file. A later call opens another one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        super().finalize(status)

    def __getstate__(self) -> dict[str, Any]:
        # A writer holds a thread and a file; the copy opens a file of its own.
        return {**self.__dict__, "_writer": None}
