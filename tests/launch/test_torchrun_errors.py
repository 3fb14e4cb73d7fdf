"""The errors that ranks of torchrun show. One process plays them, with the variables of each."""

import json
import os
import subprocess
import sys

import pytest

from core import ConfigurationError
from core.display import tracebacks


@pytest.fixture
def ends(tmp_path, monkeypatch, capfd):
    """Ends a rank by an error; returns what it shows, and what it leaves for torchrun."""

    def end(rank, error):
        file = tmp_path / str(rank) / "error.json"
        file.parent.mkdir(exist_ok=True)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
        monkeypatch.setenv("RANK", str(rank))
        try:
            raise error
        except Exception:
            tracebacks.show(*sys.exc_info())
        left = (
            json.loads(file.read_text())["message"]["extraInfo"]["py_callstack"]
            if file.exists()
            else None
        )
        return capfd.readouterr().err, left

    monkeypatch.setattr(tracebacks, "_origin", lambda frame: "core")
    monkeypatch.setattr(tracebacks, "CAUSE_S", 0.0)
    return end


def test_what_ranks_have_alike_is_shown_once_and_left_for_torchrun(ends):
    shown, left = ends(0, ConfigurationError("devices=0"))
    assert left == "core.ConfigurationError: devices=0"
    assert shown.endswith(f"{left}\n")
    assert ends(1, ConfigurationError("devices=0")) == ("", left)
    assert "devices=1" in ends(2, ConfigurationError("devices=1"))[0], "another error is shown"


def test_an_error_before_any_fabric_is_shown_once_too(tmp_path):
    """As of a callback's argument, or of the Trainer's."""
    for rank in "01":
        file = tmp_path / rank / "error.json"
        file.parent.mkdir()
        environment = os.environ | {"TORCHELASTIC_ERROR_FILE": str(file), "RANK": rank}
        program = "from core import ConfigurationError\nraise ConfigurationError('n=0')"
        with open(tmp_path / "shown", "a") as shown:
            subprocess.run(
                [sys.executable, "-c", program], env=environment, stderr=shown, check=False
            )
        assert "core.ConfigurationError: n=0" in file.read_text()
    assert (tmp_path / "shown").read_text().count("n=0") == 1


@pytest.mark.parametrize(
    "text",
    [
        "gloo: Connection closed by peer",
        "Failed to recv, got 0 bytes. Connection was likely closed.",
    ],
)
def test_who_has_lost_another_rank_says_nothing_below_its_error(ends, text):
    lost = RuntimeError(text)
    shown, left = ends(0, lost)
    assert "RuntimeError" in shown, "no other has told why"
    assert shown.endswith(
        "If another rank has ended first, its own error, above or in its log, is the cause.\n"
    )
    assert left == f"RuntimeError: {text}"
    ends(1, ConfigurationError("devices=0"))
    assert ends(2, lost) == ("", None)


def test_a_file_of_its_own_has_all_that_a_rank_shows(ends, tmp_path, monkeypatch):
    for rank in (0, 1):
        with open(tmp_path / f"{rank}.log", "w") as log:
            monkeypatch.setattr(sys, "stderr", log)
            ends(rank, ConfigurationError("devices=0"))
        assert "devices=0" in (tmp_path / f"{rank}.log").read_text()
