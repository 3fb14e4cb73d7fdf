"""The server that takes the status of a TrainJob."""

from __future__ import annotations

import json
import math
import os
import ssl
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from core import CoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

_URL, _CA_CERT, _TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
_MAX_METRICS, _MAX_CHARACTERS, _MAX_SECONDS = 256, 64, 2**31 - 1
_ANSWERS_S = 5.0
_TOKEN_FILE = Path("/var/run/secrets/kubeflow/trainer/token")


@dataclass(frozen=True)
class StatusServer:
    """A server of Kubeflow Trainer's control plane, which writes what it gets to
    `TrainJob.status.trainerStatus`.

    Variables, which Kubeflow Trainer sets in each container with its feature gate `TrainJobStatus`:
        KUBEFLOW_TRAINER_SERVER_URL: that of this TrainJob's status.
        KUBEFLOW_TRAINER_SERVER_CA_CERT: file with the certificate that the server's is signed with.
        KUBEFLOW_TRAINER_SERVER_TOKEN: file with the token of a pod of this TrainJob. It is renewed,
        and read each time.

    Attributes:
        url: of the TrainJob's status.
        ca_cert: of the server, a file; None for those that this machine trusts.
        token: a file.
    """

    url: str
    ca_cert: Path | None = None
    token: Path = _TOKEN_FILE

    @classmethod
    def from_environment(cls) -> StatusServer | None:
        """The server of the TrainJob that this process is in; None if it is in none, or that
        reports no status.
        """
        url, ca_cert = os.environ.get(_URL), os.environ.get(_CA_CERT)
        if not url:
            return None
        found = cls(url, token=Path(os.environ.get(_TOKEN) or _TOKEN_FILE))
        if ca_cert:
            return replace(found, ca_cert=Path(ca_cert))
        return found

    def post(
        self, fraction: float | None, remaining_s: float | None, metrics: Mapping[str, float]
    ) -> None:
        """Write the status, and wait for the answer, up to five seconds.

        Args:
            fraction: of the work that is done, 0 to 1; None if it isn't known.
            remaining_s: seconds that the rest will take; None if they aren't known.
            metrics: by name. The first 256 are sent, with the first 64 characters of each name.

        Raises:
            CoreError: the server refuses the status; the message is the server's.
            OSError: it isn't reached, or one of the files can't be read.
        """
        status: dict[str, object] = {
            "lastUpdatedTime": datetime.now(UTC).isoformat(timespec="seconds")
        }
        if fraction is not None:
            status["progressPercentage"] = int(100 * min(max(fraction, 0), 1))
        if remaining_s is not None and math.isfinite(remaining_s):
            status["estimatedRemainingSeconds"] = min(max(round(remaining_s), 0), _MAX_SECONDS)
        named = [(name[:_MAX_CHARACTERS], value) for name, value in metrics.items() if name][
            :_MAX_METRICS
        ]
        status["metrics"] = [{"name": name, "value": f"{value:.6g}"} for name, value in named]
        self._send(json.dumps({"trainerStatus": status}).encode())

    def _send(self, body: bytes) -> None:
        token = self.token.read_text(encoding="utf-8").strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        context = ssl.create_default_context(cafile=self.ca_cert)
        # A proxy that the pod has for the outside doesn't know the cluster's own services.
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
        try:
            opener.open(Request(self.url, body, headers, method="POST"), timeout=_ANSWERS_S).close()
        except HTTPError as error:
            raise CoreError(
                f"HTTP {error.code} {HTTPStatus(error.code).phrase}: {_message(error)}"
            ) from None


def _message(error: HTTPError) -> str:
    """The words of the server: the message of a `Status` of Kubernetes, or the beginning of
    whatever it sent.
    """
    text = error.read(2000).decode(errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, LookupError, TypeError):
        return text[:200]
