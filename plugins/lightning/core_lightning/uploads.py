"""Checkpoints that a logger's service gets as artifacts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from core_lightning._loggers import Prefixes


class UploadsCheckpoints(Prefixes):
    """For loggers that take `log_model`. Stands before core's class.

    `"all"` sends each checkpoint when it is written; True sends those that are left when training ends, and each one
    where `save_top_k=-1` keeps all; False sends none.
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
            self._upload(checkpoint_callback)  # what is written at an accumulation window's end has to wait

    def finalize(self, status: str) -> None:
        """The stage is over: send what is left, if it ended well."""
        waiting, self._to_upload = self._to_upload, {}
        if status == "success":
            for callback in waiting.values():
                self._upload(callback)
        super().finalize(status)

    def _upload(self, callback: Any) -> None:
        scores = {callback.last_model_path: callback.current_score, callback.best_model_path: callback.best_model_score}
        scores |= callback.best_k_models
        found = sorted((os.stat(path).st_mtime, path) for path in scores if path and os.path.exists(path))
        for changed, path in found:
            if self._uploaded.get(path, 0.0) < changed:
                score, best = scores[path], ["best"] if path == callback.best_model_path else []
                named = (name for name in ("monitor", "mode", "save_last", "save_top_k", "save_weights_only"))
                facts = {
                    "score": None if score is None else float(score),
                    "original_filename": Path(path).name,
                    type(callback).__name__: {name: getattr(callback, name) for name in named},
                }
                self.upload(Path(path), facts, ["latest", *best])
                self._uploaded[path] = changed

    def upload(self, path: Path, facts: dict[str, Any], aliases: list[str]) -> None:
        """Send one checkpoint, a file or a folder, with what is known of it."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        # Callbacks stay in their process.
        return {**super().__getstate__(), "_to_upload": {}}
