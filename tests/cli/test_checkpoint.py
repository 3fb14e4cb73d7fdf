import io
import json

import pytest
import torch
from rich.console import Console

from core.checkpoint import load_checkpoint, verify_checkpoint
from core.cli.commands import command
from core.cli.layout import size_text, working
from support.checkpoint_collectives import save_state
from support.hostile import SPOOF, assert_tame


@pytest.fixture
def path(tmp_path):
    state = {
        "model": {"weight": torch.ones(300, 200), "bias": torch.zeros(200, dtype=torch.bfloat16)},
        "optimizers": [
            {"state": {"weight": {"exp_avg": torch.ones(300, 200)}}, "param_groups": [{"lr": 0.1}]}
        ],
        "progress": {"epoch": 3},
        "format": {"version": 1},
    }
    save_state(tmp_path / "last.ckpt", state)
    return tmp_path / "last.ckpt"


@pytest.fixture
def run():
    from click.testing import CliRunner

    return lambda *arguments: CliRunner().invoke(
        command, ["checkpoint", *map(str, arguments)], env={"COLUMNS": "80"}
    )


def test_inspect(run, path):
    done = run("inspect", path, "--tensors")
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    for part in (
        "form folder",
        "tensors 3, 469.1 KiB",
        "world size 1",
        "strategy single_device (core 0)",
        f"torch {torch.__version__}",
        "model 2 234.8 KiB float32 (60,000), bfloat16 (200)",
        "progress 0 0 B -",
        "optimizers.0.state.weight.exp_avg float32 234.4 KiB 300 x 200",
    ):
        assert part in text, text
    assert max(map(len, done.output.splitlines())) <= 80


def test_inspect_as_json(run, path):
    described = json.loads(run("inspect", path, "--json").output)
    assert (described["form"], described["world_size"]) == ("folder", 1)
    assert described["writer"]["strategy"]["alias"] == "single_device"
    assert described["tensors"][1] == {
        "name": "model.bias",
        "shape": [200],
        "dtype": "bfloat16",
        "size_bytes": 400,
    }


def test_verify(run, path):
    assert run("verify", path).output.rstrip("\n").split(maxsplit=1) == ["whole", str(path)]
    (data,) = path.glob("*.data")
    content = bytearray(data.read_bytes())
    content[1000] ^= 1
    data.write_bytes(content)
    done = run("verify", path, path.with_name("other.ckpt"))
    assert done.exit_code == 1
    assert done.output.startswith(f"failed   {path}\n")
    assert f"{data.name}' is damaged between byte 0 and" in done.output
    assert "There is no checkpoint" in done.output


def test_long_work_is_shown_on_a_terminal_alone(path, capsys):
    screen, seen = io.StringIO(), []
    with working(
        f"Verifying {SPOOF}", Console(file=screen, force_terminal=True, width=200)
    ) as report:
        verify_checkpoint(path, lambda *position: (seen.append(position), report(*position)))
    (total,) = {total for _, total in seen}
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (total, total)
    assert f"100% of {size_text(total)}" in screen.getvalue()
    assert SPOOF not in screen.getvalue()
    with working("Verifying"):
        pass
    assert capsys.readouterr() == ("", "")


def test_consolidate_and_back(run, path, tmp_path):
    assert run("consolidate", path, tmp_path / "all.pt").output == f"{tmp_path / 'all.pt'}: torch\n"
    whole = torch.load(tmp_path / "all.pt", weights_only=True)
    assert torch.equal(whole["model"]["weight"], torch.ones(300, 200))
    assert whole["progress"] == {"epoch": 3}
    assert run("convert", tmp_path / "all.pt", tmp_path / "again.ckpt").exit_code == 0
    again, first = load_checkpoint(tmp_path / "again.ckpt"), load_checkpoint(path)
    assert torch.equal(again["model"].pop("weight"), first["model"].pop("weight"))
    assert again["progress"] == first["progress"]
    assert "form file" in " ".join(run("inspect", tmp_path / "all.pt").output.split())


def test_weights_for_other_programs(run, path, tmp_path):
    from safetensors.torch import load_file

    with pytest.warns(
        UserWarning,
        match=r"model\.safetensors' holds weights and plain values. Left out: 'optimizers'",
    ):
        assert run("convert", path, tmp_path / "model.safetensors").exit_code == 0
    weights = load_file(tmp_path / "model.safetensors")
    assert sorted(weights) == ["bias", "weight"]
    assert weights["bias"].dtype == torch.bfloat16
    loaded = load_checkpoint(tmp_path / "model.safetensors")
    assert "optimizers" not in loaded
    assert loaded["progress"] == {"epoch": 3}
    assert torch.equal(loaded["model"]["weight"], torch.ones(300, 200))


def test_a_place_that_is_taken(run, path):
    done = run("convert", path, path, "--to", "torch")
    assert done.exit_code == 1
    assert "Something is at" in done.output


def test_forms_of_a_plugin(core_cli, tmp_path):
    acme = """
import json
from pathlib import Path

from core import CheckpointError, CheckpointIO


class Acme(CheckpointIO):
    '''Weights as JSON.'''

    def save_checkpoint(self, state, path, *, collectives):
        Path(path).write_text(json.dumps({name: value.tolist() for name, value in state["model"].items()}))

    def load_checkpoint(self, path, *, collectives, state=None):
        raise CheckpointError("Acme's can't be read.")

    def remove_checkpoint(self, path, *, collectives):
        Path(path).unlink(missing_ok=True)


class AcmeIndex(Acme):
    '''The names in a file of Acme's, which nothing reads.'''

    def convert_checkpoint(self, source, target, *, reader, collectives):
        Path(target).write_text(",".join(json.loads(Path(source).read_text())))
"""
    entry_points = (
        "[core.checkpoint_ios]\nacme = core_acme:Acme\nacme_index = core_acme:AcmeIndex\n"
    )
    core_cli.install(
        "core-acme", entry_points, requires=("core-training>=0.1",), modules={"core_acme": acme}
    )
    torch.save({"model": {"bias": torch.ones(2)}}, tmp_path / "last.pt")

    def convert(*arguments):
        done = core_cli("checkpoint", "convert", *map(str, arguments), PYTHONWARNINGS="ignore")
        assert done.returncode == 0, done.stderr
        return done.stdout

    weights, names = tmp_path / "weights.json", tmp_path / "names.txt"
    assert convert(tmp_path / "last.pt", weights, "--to", "acme") == f"{weights}: acme\n"
    assert json.loads(weights.read_text()) == {"bias": [1.0, 1.0]}
    convert(weights, names, "--to", "acme-index")
    assert names.read_text() == "bias"


def test_one_that_writes_in_the_background_has_written(run, path, tmp_path):
    assert run("convert", path, tmp_path / "again.ckpt", "--to", "async").exit_code == 0
    assert load_checkpoint(tmp_path / "again.ckpt")["progress"] == {"epoch": 3}


@pytest.mark.parametrize("option", ["--to", "--from"])
def test_a_form_that_nobody_offers(run, path, tmp_path, option):
    done = run("convert", path, tmp_path / "model.safetensors", option, "safetensor")
    assert done.exit_code == 1
    text = " ".join(done.output.split())
    assert "Unknown checkpoint io 'safetensor'. Did you mean 'safetensors'?" in text
    assert "distributed" in text, "all that there are"
    assert not (tmp_path / "model.safetensors").exists()


def test_what_a_checkpoint_says_of_itself_reaches_no_terminal_raw(run, tmp_path):
    state = {f"model{SPOOF}\nfalse row": {f"weight{SPOOF}": torch.ones(2)}}
    path = tmp_path / f"last{SPOOF}.ckpt"
    save_state(path, state)
    for arguments in (["inspect", "--tensors"], ["inspect", "--json"], ["verify"]):
        done = run(*arguments, path)
        assert done.exit_code == 0
        assert_tame(done.output)
    assert r"model\x1b[2K\rddp  ok\x9b2J\x07\u202e\u200b\nfalse row" in run("inspect", path).output
    next(path.glob("*.data")).write_bytes(b"")
    damaged, missing = run("verify", path), run("verify", tmp_path / "lost.ckpt")
    assert "damaged" in damaged.output
    assert r"In that folder are: last\x1b" in missing.output
    assert_tame(damaged.output, missing.output)
