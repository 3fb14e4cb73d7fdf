"""The trainer's side: each version goes to a file, and the server is asked to load it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from core.checkpoint.building_blocks import together
from core_weights import FolderSink, TransferError

if TYPE_CHECKING:
    from pathlib import Path

    from core import Fabric, Trainer
    from core_weights import WeightSource

ENGINE = "core-folder"
"""The name under which vLLM knows the engine that reads the files."""


class VLLMSink:
    """Sends weights to a vLLM server by its routes for weight updates, through files in a folder
    that both see.

        core.callbacks.PushWeights(VLLMSink("http://127.0.0.1:8000", "/dev/shm/weights"),
        stream=PretrainedWeights)

    The server runs with core-vllm installed, `VLLM_SERVER_DEV_MODE=1` and
    `--weight-transfer-config '{"backend": "core-folder"}'`. A request waits while the weights are
    changed; what is generated then, and the caches before, is the server's: `/pause` and `/resume`
    are there for that.
    """

    def __init__(
        self, url: str, folder: str | Path, *, keep: int = 1, timeout: float = 300.0
    ) -> None:
        """Create the sink. The server is asked for nothing before the first `send`.

        Args:
            url: of the server, such as `"http://127.0.0.1:8000"`.
            folder: local to rank 0 and to each worker of the server.
            keep: versions that stay there.
            timeout: seconds in which the server has to answer a request.

        Raises:
            ConfigurationError: nothing would stay.
        """
        self.url, self.timeout = url.rstrip("/"), timeout
        self._files = FolderSink(folder, keep=keep)
        self._is_open = False

    def send(self, host: Fabric | Trainer, stream: WeightSource, /) -> None:
        """All ranks, between two steps. Returns when the server generates with the new weights.

        Raises:
            TransferError: the server doesn't answer, or can't take them: its own words.
            CheckpointError: the file can't be written.
        """
        self._files.send(host, stream)

        def update() -> None:
            if not host.is_global_zero:
                return
            if not self._is_open:
                folder = str(self._files.folder.resolve())
                self._post("init_weight_transfer_engine", {"init_info": {"folder": folder}})
            self._is_open = True
            self._post("start_weight_update")
            self._post("update_weights", {"update_info": {"version": stream.version}})
            self._post("finish_weight_update", {"weight_version": str(stream.version)})

        together(host.strategy.session.collectives, update)

    def close(self, error: BaseException | None = None, /) -> None:
        """All ranks. Forget the server, which goes on with the weights that it has; the files
        stay.
        """
        self._is_open = False

    def _post(self, route: str, content: dict[str, Any] | None = None) -> None:
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{self.url}/{route}", json.dumps(content or {}).encode(), head
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout):
                return
        except urllib.error.HTTPError as answer:
            with answer:
                text = answer.read(2000).decode(errors="replace")
            cure = (
                f'Start it with VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config \'{{"backend": '
                f'"{ENGINE}"}}\', and '
                "core-vllm installed there."
            )
            raise TransferError(
                f"{self.url}/{route} answers {answer.code}: {text}. {cure}"
            ) from answer
        except OSError as error:  # no connection, or none in time
            raise TransferError(f"{self.url}/{route}: {error}. Is the server there?") from error
