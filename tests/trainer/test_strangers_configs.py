"""Hyperparameters and configs that a stranger has written: an error of a line, at once."""

import sys

import pytest

from core import ConfigurationError, Module, cli_for

NINE = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
MERGED = "".join(f"m{n}: &m{n}\n  <<: [{', '.join([f'*m{n - 1}'] * 9)}]\n" for n in range(1, 12))
FILES = {
    "anchors that multiply": (f"a0: &a0 [1]\n{NINE}".encode(), "anchors in it stand for more values than a file"),
    "merges that multiply": (f"m0: &m0\n  k: 1\n{MERGED}".encode(), "anchors in it stand for more values than a file"),
    "an anchor in itself": (b"a: &a\n  b: *a\n", "stands for something that holds itself"),
    "a list in itself": (b"a: &a [1, *a]\n", "stands for something that holds itself"),
    "depth": (b"a: " + b"[" * 3000 + b"]" * 3000, "nested more than 100 levels deep"),
    "a long number": (b"a: " + b"9" * 100_000, "Exceeds the limit"),
    "a long number in hexadecimal": (b"a: 0x" + b"f" * 100_000, "has 400000 bits"),
    "another encoding": ("a: \u00e4".encode("utf-16"), "isn't written in UTF-8"),
    "Latin": ("a: \u00e4".encode("latin-1"), "isn't written in UTF-8"),
    "no YAML": (b"a: [" + b"x, " * 2000, "while parsing"),
}


class Net(Module):
    def __init__(self, a=None):
        super().__init__()
        self.save_hyperparameters()


def refused(call, reason):
    with pytest.raises(ConfigurationError, match=reason) as caught:
        call()
    text = str(caught.value)
    assert len(text) < 800
    assert text.count("\n") < 4


@pytest.mark.parametrize(("raw", "reason"), FILES.values(), ids=FILES)
@pytest.mark.parametrize("ending", [".yaml", ".json"])
def test_a_file_of_hyperparameters_is_refused_in_a_line(tmp_path, raw, reason, ending):
    path = tmp_path / f"hparams{ending}"
    if ending == ".json":
        if not reason.startswith(("nested", "Exceeds", "isn't")):
            pytest.skip("it isn't JSON")
        raw = b'{"a": ' + raw.partition(b"a: ")[2] + b"}" if raw.startswith(b"a: ") else raw
    path.write_bytes(raw)
    saved = tmp_path / "net.pt"
    save_weights(saved)
    refused(lambda: Net.load_from_checkpoint(saved, hparams_file=path), reason)


def save_weights(path):
    import torch

    torch.save({"pytorch-lightning_version": "2.0.0", "state_dict": {}, "epoch": 0, "global_step": 0}, path)


@pytest.mark.filterwarnings("ignore:.*has no digest")
@pytest.mark.parametrize(("raw", "reason"), FILES.values(), ids=FILES)
@pytest.mark.parametrize("form", [("--config", "{}"), ("--config={}",)], ids="".join)
def test_a_config_is_refused_in_a_line(tmp_path, monkeypatch, raw, reason, form):
    path = tmp_path / "config.yaml"
    path.write_bytes(raw)
    words = ["fit", *(word.format(path) for word in form)]
    refused(lambda: cli_for(Net, args=words), reason)
    monkeypatch.setattr(sys, "argv", ["program", *words])
    refused(lambda: cli_for(Net), reason)


@pytest.mark.parametrize(
    "words", [["--config", "c.yaml"], ["--config", "outer.yaml"], ["--model", "sub/m.yaml"]], ids=str
)
def test_a_config_that_another_names_is_refused_in_a_line(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "m.yaml").write_bytes(FILES["anchors that multiply"][0])
    (tmp_path / "c.yaml").write_text("model: sub/m.yaml\nconfig: c.yaml\n")
    (tmp_path / "outer.yaml").write_text("config: c.yaml\n")
    refused(lambda: cli_for(Net, args=["fit", *words]), r"m.yaml' can't be read: anchors in it stand for more values")


@pytest.mark.filterwarnings("ignore:.*has no digest")
@pytest.mark.parametrize(("size", "is_read"), [(64 << 10, True), (65 << 10, False)])
def test_without_libyaml_only_a_small_file_is_read(tmp_path, monkeypatch, size, is_read):
    yaml = pytest.importorskip("yaml")
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    path, saved = tmp_path / "hparams.yaml", tmp_path / "net.pt"
    path.write_text("a: ".ljust(size, "x"))
    save_weights(saved)
    if is_read:
        Net.load_from_checkpoint(saved, hparams_file=path)
    else:
        refused(lambda: Net.load_from_checkpoint(saved, hparams_file=path), "more than 64 KiB, and this PyYAML has no")


@pytest.mark.filterwarnings("ignore:.*has no digest")
def test_depth_is_found_by_pythons_parser_too(tmp_path, monkeypatch):
    yaml = pytest.importorskip("yaml")
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    path, saved = tmp_path / "hparams.yaml", tmp_path / "net.pt"
    path.write_bytes(FILES["depth"][0])
    save_weights(saved)
    refused(lambda: Net.load_from_checkpoint(saved, hparams_file=path), "nested more than 100 levels deep")


def test_anchors_that_repeat_a_little_are_read(tmp_path):
    path, saved = tmp_path / "hparams.yaml", tmp_path / "net.pt"
    path.write_bytes("\ufeffb: &b {x: 1}\na:\n  <<: *b\n  y: [*b, *b]\n".encode())
    save_weights(saved)

    class Both(Module):
        def __init__(self, a, b):
            super().__init__()
            self.values = a

    assert Both.load_from_checkpoint(saved, hparams_file=path).values == {"x": 1, "y": [{"x": 1}, {"x": 1}]}
