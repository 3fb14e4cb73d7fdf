"""With the real library, offline. Each test runs a program: the library keeps a process beside the
one that uses it.
"""

import importlib
import json
import os
import struct

import pytest

from core.contract import ConfigurationError
from core_testing.waiting import wait_until
from core_wandb import WandbLogger
from support.logger_programs import run_in
from support.missing_packages import hide

PRELOAD = "wandb,wandb.sdk.launch,core.loggers"  # a run imports the second when it begins
BLOCK, HEADER = 32768, 7


@pytest.fixture
def run(tmp_path):
    """Run a program in an empty folder, offline; the lines that it prints."""
    settings = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    # or each reads the metadata of all installed packages
    settings["WANDB_X_SAVE_REQUIREMENTS"] = "false"
    return lambda program: run_in(
        tmp_path, f"from core.loggers import WandbLogger\n{program}", PRELOAD, **settings
    )


def records(path):
    """The records of an offline run: W&B's file is a log in LevelDB's format, of protobuf
    messages.
    """
    message = importlib.import_module("wandb.proto.wandb_internal_pb2")
    content, position, pending = path.read_bytes(), HEADER, b""
    while position + HEADER <= len(content):
        if BLOCK - position % BLOCK < HEADER:
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        pending += content[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if kind in (1, 4):
            yield message.Record.FromString(pending)
            pending = b""


def read(folder):
    """Of each run, by its id: history, configuration and exit codes."""
    found = {}
    for path in sorted(folder.rglob("*.wandb")):
        one = found.setdefault(
            path.stem.removeprefix("run-"), {"history": [], "config": {}, "exits": []}
        )
        for record in records(path):
            if record.HasField("history"):
                items = {
                    item.key or item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item
                }
                one["history"].append(
                    {name: value for name, value in items.items() if not name.startswith("_")}
                )
            for update in (record.config.update, record.run.config.update):
                one["config"] |= {
                    item.key: json.loads(item.value_json) for item in update if item.key != "_wandb"
                }
            if record.HasField("exit"):
                one["exits"].append(record.exit.exit_code)
    return found


def test_metrics_and_options_come_back(run, tmp_path):
    [version, log_dir] = run("""
logger = WandbLogger("project", "name", offline=True)
logger.log_hyperparams({"lr": 0.1, "model": {"width": 8}})
for step in range(3):
    logger.log_metrics({"loss": 1 / (step + 1)}, step * 10)
logger.finalize("success")
logger.experiment.log({"mine": 1})
print(logger.version, logger.log_dir, sep="\\n")
""")
    assert log_dir == os.path.join("project", version)
    [(found, written)] = read(tmp_path).items()
    assert found == version
    assert written["history"] == [
        {"loss": 1.0, "trainer/global_step": 0},
        {"loss": 0.5, "trainer/global_step": 10},
        {"loss": 1 / 3, "trainer/global_step": 20},
        {"mine": 1, "trainer/global_step": 20},
    ]
    assert written["config"] == {"lr": 0.1, "model": {"width": 8}}
    assert written["exits"] == [0]


def test_nothing_is_opened_before_it_is_needed(run, tmp_path):
    run("""
logger = WandbLogger()
logger.save()
logger.finalize("success")
""")
    assert not list(tmp_path.iterdir())


def test_a_run_that_failed_says_so_and_can_go_on(run, tmp_path):
    run("""
logger = WandbLogger(version="mine")
logger.log_metrics({"loss": 1}, 0)
logger.finalize("failed")
logger.log_metrics({"loss": 2}, 1)
""")
    written = read(tmp_path)["mine"]
    assert [row["loss"] for row in written["history"]] == [1, 2]
    assert sorted(written["exits"]) == [0, 1]


def test_a_run_that_the_user_has_opened_is_used_and_left_alone(run, tmp_path):
    run("""
import wandb
opened = wandb.init(id="opened", project="other")
logger = WandbLogger()
logger.log_metrics({"loss": 1}, 0)
logger.finalize("failed")
opened.log({"mine": 2})
given = wandb.init(id="given", reinit="create_new")
logger = WandbLogger(experiment=given)
logger.log_metrics({"loss": 3}, 0)
assert (logger.version, logger.experiment) == ("given", given)
""")
    written = read(tmp_path)
    assert written.keys() == {"opened", "given"}
    assert written["opened"]["history"] == [
        {"loss": 1, "trainer/global_step": 0},
        {"mine": 2, "trainer/global_step": 0},
    ]
    assert written["given"]["history"] == [{"loss": 3, "trainer/global_step": 0}]
    assert written["opened"]["exits"] == written["given"]["exits"] == [0]


@pytest.mark.slow
def test_two_loggers_are_two_runs(run, tmp_path):
    versions = run("""
for value in range(2):
    logger = WandbLogger()
    logger.log_metrics({"loss": value}, 0)
    logger.finalize("success")
    print(logger.version)
""")
    written = read(tmp_path)
    assert [written[version]["history"] for version in versions] == [
        [{"loss": value, "trainer/global_step": 0}] for value in range(2)
    ]


def test_a_worker_process_ends_its_run(run, tmp_path):
    """Workers end without Python's exit handlers, on which the library relies."""
    [version] = run("""
import multiprocessing

def work(logger):
    logger.log_metrics({"loss": 1}, 0)
    logger.finalize("success")

logger = WandbLogger()
print(logger.version)
process = multiprocessing.get_context("fork").Process(target=work, args=(logger,))
process.start()
process.join()
""")
    # The library's own process may still write.
    assert wait_until(lambda: read(tmp_path)[version]["exits"], "end of the run") == [0]


def test_a_missing_package_is_told_before_the_run(monkeypatch):
    hide(monkeypatch, "wandb")
    with pytest.raises(ConfigurationError, match=r"not installed: `pip install wandb`"):
        WandbLogger()


def test_an_experiment_that_is_none():
    with pytest.raises(
        ConfigurationError, match=r"experiment='id': expected a run, as wandb\.init returns it"
    ):
        WandbLogger(experiment="id")
