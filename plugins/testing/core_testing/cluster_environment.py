"""The conformance suite of cluster environments."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from core import Absent, Broken, ClusterEnvironment, ConfigurationError, CoreError, Found
from core_testing.conformance import Conformance
from core_testing.scripts import run_forked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NUMBERS = ("world_size", "global_rank", "local_rank", "node_rank")
_KEPT = ("PATH", "HOME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "TMPDIR")


class ClusterEnvironmentConformance(Conformance[ClusterEnvironment]):
    """All that a cluster environment must prove. Subclass it, set `alias`, and write down what its
    scheduler sets.

    Attributes:
        variables: those of one process of a job, as the scheduler sets them. Empty: it is always
            there.
        expected: what they mean: `world_size`, `global_rank`, `local_rank`, `node_rank`, and if
            they are known `main_address` and `main_port`.
        devices: processes on each node, and nodes, that fit these variables, as `validate` takes
            them.
        malformed: one of the variables; a word in the place of its number must be refused. None:
            there is none.
    """

    kind = "cluster environment"
    variables: ClassVar[Mapping[str, str]] = {}
    expected: ClassVar[Mapping[str, Any]] = {}
    devices: ClassVar[tuple[int, int]] = (1, 1)
    malformed: ClassVar[str | None] = None

    def job_variables(self, folder: Path) -> Mapping[str, str]:
        """`variables`. Override it if some of them name files, and write those below `folder`."""
        return self.variables

    @pytest.fixture
    def job(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Inside the job: its variables, and none of another scheduler."""
        variables = self.job_variables(tmp_path)
        self._clear(monkeypatch)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    @pytest.fixture
    def nowhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A machine without any scheduler."""
        self._clear(monkeypatch)

    @pytest.mark.usefixtures("job")
    def test_is_found_in_its_job(self) -> None:
        """`detect` answers `Found`, with the number of processes."""
        answer = self._kind.detect()
        assert isinstance(answer, Found), answer
        assert answer.count == self.expected.get("world_size", 1)

    @pytest.mark.usefixtures("nowhere")
    def test_is_absent_elsewhere(self) -> None:
        """Without its variables, `detect` answers `Absent` with a reason; what is always there has
        priority 0.
        """
        answer = self._kind.detect()
        if self.variables:
            assert isinstance(answer, Absent), answer
            assert answer.reason
        else:
            assert isinstance(answer, Found)
            assert answer.priority == 0

    def test_detecting_imports_no_torch(self, tmp_path: Path) -> None:
        """To read variables is all that `detect` does: it imports neither torch nor an
        extension.
        """
        module, _, name = self.registry.spec(self.alias).target.partition(":")
        program = f"import sys, {module} as m; m.{name}.detect(); print('torch' in sys.modules)"
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | dict(
            self.job_variables(tmp_path)
        )
        done = run_forked(
            tmp_path / "detect.py",
            program,
            [],
            timeout_s=120,
            preload="core.registry",
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "False"

    @pytest.mark.usefixtures("job")
    def test_knows_its_place(self) -> None:
        """Sizes and ranks are those of the job, the same at each call, and within their bounds."""
        environment = self.make()
        found = {name: getattr(environment, name)() for name in _NUMBERS}
        for name in _NUMBERS:
            if name in self.expected:
                assert found[name] == self.expected[name], name
        assert found == {name: getattr(environment, name)() for name in _NUMBERS}
        assert 0 <= found["global_rank"] < found["world_size"]
        assert 0 <= found["local_rank"] <= found["global_rank"]
        assert 0 <= found["node_rank"] <= found["global_rank"]

    @pytest.mark.usefixtures("job")
    def test_knows_where_to_meet(self) -> None:
        """The main address is a name, the port a number that any rank could connect to; the same at
        each call.
        """
        environment = self.make()
        address, port = environment.main_address, environment.main_port
        assert isinstance(address, str)
        assert address
        assert isinstance(port, int)
        assert 0 < port < 65_536
        assert (environment.main_address, environment.main_port) == (address, port)
        assert address == self.expected.get("main_address", address)
        assert port == self.expected.get("main_port", port)

    @pytest.mark.usefixtures("job")
    def test_validates_what_fits(self) -> None:
        """`validate` takes the numbers of the job."""
        self.make().validate(*self.devices)

    @pytest.mark.usefixtures("job")
    def test_refuses_what_does_not_fit(self) -> None:
        """`validate` refuses other numbers with an error that shows both."""
        if not self._kind.creates_processes:
            pytest.skip(f"{self.alias} lets the launcher make as many processes as are asked for")
        num_devices, num_nodes = self.devices
        with pytest.raises(ConfigurationError) as caught:
            self.make().validate(num_devices + 3, num_nodes)
        assert str(num_devices + 3) in str(caught.value)
        assert str(self.expected["world_size"]) in str(caught.value)

    @pytest.mark.usefixtures("job")
    def test_refuses_malformed_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A variable that isn't a number is an error that names it, or makes the environment
        `Broken`.
        """
        if self.malformed is None:
            pytest.skip(f"{self.alias} reads no number that can be malformed")
        monkeypatch.setenv(self.malformed, "many")
        try:
            answer = self._kind.detect()
            environment = self.make()
            numbers = [getattr(environment, name)() for name in _NUMBERS] + [environment.main_port]
        except CoreError as error:
            complaint = str(error)
        else:
            assert isinstance(answer, Broken), f"{self.malformed}=many was taken: {numbers}"
            complaint = answer.reason
        assert self.malformed in complaint

    @pytest.mark.usefixtures("job")
    def test_takes_its_place_from_a_launcher(self) -> None:
        """`set_world` decides where no scheduler has; elsewhere it changes nothing."""
        environment = self.make()
        before = {name: getattr(environment, name)() for name in _NUMBERS}
        world = {"world_size": 4, "global_rank": 3, "local_rank": 1, "node_rank": 1}

        def set_by_launcher() -> dict[str, int]:
            environment.set_world(**world)
            return {name: getattr(environment, name)() for name in _NUMBERS}

        after = self.alone(set_by_launcher)  # a process has one world
        assert after == (before if self._kind.creates_processes else world)

    @pytest.mark.usefixtures("job")
    def test_crosses_processes(self) -> None:
        """It pickles, and says the same on the other side: a launcher takes it along."""
        environment = self.make()
        port = environment.main_port
        copy = pickle.loads(pickle.dumps(environment))
        assert copy.main_port == port
        assert copy.world_size() == environment.world_size()

    @pytest.mark.usefixtures("job")
    def test_changes_no_variables(self) -> None:
        """To ask all of it, and to tear it down twice, leaves the environment's variables as they
        were.
        """
        before = dict(os.environ)
        environment = self.make()
        for name in _NUMBERS:
            getattr(environment, name)()
        assert environment.main_port
        assert environment.restart_count >= 0
        assert environment.job_id() is None or isinstance(environment.job_id(), str)
        environment.teardown()
        environment.teardown()
        assert dict(os.environ) == before

    @property
    def _kind(self) -> type[ClusterEnvironment]:
        kind = self.registry.get(self.alias)
        assert isinstance(kind, type)
        return kind

    def _clear(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in set(os.environ) - {*_KEPT, "PYTEST_CURRENT_TEST"}:
            monkeypatch.delenv(name)
