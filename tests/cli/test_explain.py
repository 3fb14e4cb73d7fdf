import json
import re


def test_each_decision_with_its_reason(core_cli):
    done = core_cli("explain", "--accelerator", "cpu", "--devices", "1", "--precision", "bf16")
    assert done.returncode == 0, done.stderr
    lines = " ".join(done.stdout.split())
    for row in (
        r"accelerator cpu accelerator='cpu' was asked for \(from core \d",
        r"devices 1 \(index 0\) devices='1' was asked for",
        r"strategy single_device auto: 1 device on 1 node",
        r"precision bf16-mixed precision='bf16' was asked for",
        r"launcher in_place",
    ):
        assert re.search(row, lines), row
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_json(core_cli):
    decisions = json.loads(core_cli("explain", "--accelerator", "cpu", "--json").stdout)
    assert [decision["subject"] for decision in decisions] == [
        *(
            "accelerator",
            "devices",
            "nodes",
            "cluster environment",
            "strategy",
            "precision",
            "checkpoint io",
            "launcher",
        )
    ]
    assert all(decision.keys() == {"subject", "choice", "reason", "provider"} for decision in decisions)


def test_parts_by_name(core_cli):
    done = core_cli("explain", "--accelerator", "cpu", "--plugin", "local", "--plugin", "spawn")
    assert "plugins=['spawn'] was asked for" in " ".join(done.stdout.split())


def test_an_impossible_combination(core_cli):
    done = core_cli("explain", "--accelerator", "cpu", "--devices", "2", "--strategy", "single_device")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: SingleDeviceStrategy trains on 1 device, and devices=2")


def test_a_missing_package(core_cli):
    done = core_cli("explain", "--strategy", "core-unheard:int8")
    assert done.returncode == 1
    assert "No installed package 'core-unheard' offers anything to core." in done.stderr


def test_a_broken_third_party_accelerator_is_a_warning(core_cli):
    core_cli.install(
        "core-acme",
        "[core.accelerators]\nacme = core_acme:Acme\n",
        modules={"core_acme": "raise OSError('no libacme')\n"},
    )
    done = core_cli("explain", "--devices", "1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("Warning: The accelerator 'acme' of core-acme 1.0 was not considered. ")
    assert "OSError: no libacme" in done.stderr
