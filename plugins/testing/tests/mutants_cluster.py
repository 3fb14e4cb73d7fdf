"""Cluster environments that don't know where they are. No import here is of torch: what `detect`
needs is tested.
"""

import os
import threading
from functools import partial

from table import mutant

from core import ConfigurationError, Found
from core.cluster import TorchElasticEnvironment

JOB = {
    **{
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
    },
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "TORCHELASTIC_RUN_ID": "a-job"},
}


environment = partial(
    mutant,
    kind="cluster environment",
    passes="test_documents_itself",
    variables=JOB,
    expected={"world_size": 2, "global_rank": 1, "local_rank": 1, "node_rank": 0},
    devices=(2, 1),
    malformed="WORLD_SIZE",
)


@environment("test_is_found_in_its_job")
class MissesItsJob(TorchElasticEnvironment):
    """Counts nodes where it should count processes."""

    @classmethod
    def detect(cls):
        answer = super().detect()
        return Found(1, answer.priority) if isinstance(answer, Found) else answer


@environment("test_is_absent_elsewhere")
class IsEverywhere(TorchElasticEnvironment):
    """Says that it is here, wherever that is."""

    @classmethod
    def detect(cls):
        return Found(2, 50)


@environment("test_knows_its_place")
class CountsFromOne(TorchElasticEnvironment):
    """Numbers ranks from 1."""

    def global_rank(self):
        return super().global_rank() + 1


@environment("test_knows_where_to_meet")
class MovesOn(TorchElasticEnvironment):
    """Names another port each time."""

    calls = 0

    @property
    def main_port(self):
        self.calls += 1
        return super().main_port + self.calls


@environment("test_validates_what_fits")
class RefusesAll(TorchElasticEnvironment):
    """Refuses what fits."""

    def validate(self, num_devices, num_nodes):
        raise ConfigurationError(f"devices={num_devices}: 2 were expected")


@environment("test_refuses_what_does_not_fit")
class TakesAnySize(TorchElasticEnvironment):
    """Takes any number of devices."""

    def validate(self, num_devices, num_nodes):
        pass


@environment("test_refuses_malformed_variables")
class ReadsWordsAsOne(TorchElasticEnvironment):
    """Takes a word for the number 1."""

    @classmethod
    def detect(cls):
        return Found(cls._size(), 90)

    @staticmethod
    def _size():
        text = os.environ.get("WORLD_SIZE", "1")
        return int(text) if text.isdigit() else 1

    def world_size(self):
        return self._size()


@environment("test_takes_its_place_from_a_launcher")
class ListensToLaunchers(TorchElasticEnvironment):
    """Lets a launcher overrule the scheduler."""

    told = None

    def set_world(self, *, world_size, global_rank, local_rank, node_rank):
        self.told = global_rank

    def global_rank(self):
        return super().global_rank() if self.told is None else self.told


@environment("test_crosses_processes")
class HoldsAnEnvironmentLock(TorchElasticEnvironment):
    """Holds a lock, which doesn't pickle."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


@environment("test_changes_no_variables")
class WritesVariables(TorchElasticEnvironment):
    """Sets a variable when it is asked for its rank."""

    def global_rank(self):
        os.environ["MUTANT_RANK"] = "1"
        return super().global_rank()
