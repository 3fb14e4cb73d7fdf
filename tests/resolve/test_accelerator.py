import pytest
import torch

from core import (
    Absent,
    Broken,
    ConfigurationError,
    DeviceError,
    Found,
    PluginLoadError,
    UnknownAliasError,
)
from core.accelerators import CPUAccelerator
from core.resolve import resolve
from core.strategies import DDPStrategy
from core_testing import Backend
from resolve.resolve_fakes import FourDevices, ManyDevices, OneDevice, decision


def detecting(detection):
    """An accelerator class with this answer."""
    return type(
        "Fake", (OneDevice,), {"name": "acme", "detect": classmethod(lambda cls: detection)}
    )


def test_by_name():
    resolution = resolve(accelerator="CPU")
    assert isinstance(resolution.strategy.accelerator, CPUAccelerator)
    assert resolution.strategy.root_device == torch.device("cpu")
    assert decision(resolution, "accelerator").choice == "cpu"
    assert decision(resolution, "accelerator").reason == "accelerator='CPU' was asked for"
    assert decision(resolution, "accelerator").provider.startswith("core-base ")


def test_auto_takes_a_third_party_accelerator_of_higher_priority(register):
    register("accelerator", "acme", OneDevice)
    resolution = resolve()
    assert resolution.strategy.root_device == torch.device("meta", 0)
    assert decision(resolution, "accelerator").choice == "acme"
    assert "comes before" in decision(resolution, "accelerator").reason


def test_auto_passes_over_a_lower_priority_and_says_who_is_absent(register):
    register("accelerator", "acme", OneDevice)
    register("accelerator", "slow", detecting(Found(1, priority=1)))
    register("accelerator", "gone", detecting(Absent("no such card")))
    register("accelerator", "none", detecting(Found(0, priority=2000)))
    reason = decision(resolve(), "accelerator").reason
    assert reason.startswith("auto; it is here, and comes before cpu")
    assert "slow" in reason
    assert "gone: no such card" in reason
    assert "none: it counts none" in reason
    assert decision(resolve(), "accelerator").choice == "acme"


def test_auto_refuses_a_broken_device_and_names_the_way_around_it(register):
    register("accelerator", "acme", detecting(Broken("the driver is older than the library")))
    with pytest.raises(ConfigurationError) as caught:
        resolve()
    assert str(caught.value) == (
        "The accelerator 'acme' (<in-process>) is here, but it can't be used: the driver is older "
        "than the library. Repair it, or choose another one yourself: accelerator='cpu'."
    )
    assert resolve(accelerator="cpu").strategy.root_device.type == "cpu"


def test_auto_refuses_to_guess_between_equals(register):
    register("accelerator", "acme", OneDevice)
    register("accelerator", "zenith", FourDevices)
    with pytest.raises(
        ConfigurationError, match=r"'acme' and 'zenith'.*accelerator='acme' or accelerator='zenith'"
    ):
        resolve()


def test_auto_warns_of_an_accelerator_that_cannot_be_asked(register):
    class Crashing(OneDevice):
        @classmethod
        def detect(cls):
            raise OSError("libacme.so: cannot open shared object file")

    register("accelerator", "acme", Crashing)
    with pytest.warns(
        RuntimeWarning, match=r"'acme' of <in-process> was not considered. OSError: libacme.so"
    ):
        resolution = resolve()
    assert resolution.strategy.accelerator.name != "acme"


@pytest.mark.parametrize(
    ("detection", "problem"),
    [
        (Absent("no such card"), "is not here: no such card"),
        (Broken("driver"), "can't be used: driver"),
        (Found(0), "is not here: it counts no device"),
    ],
)
def test_one_that_was_asked_for_must_be_here(register, detection, problem):
    register("accelerator", "acme", detecting(detection))
    with pytest.raises(DeviceError, match=rf"^Accelerator 'acme' {problem}. Here are: .*cpu"):
        resolve(accelerator="acme")
    with pytest.raises(DeviceError, match=rf"^Accelerator 'acme' {problem}. Here are: .*cpu"):
        resolve(accelerator=detecting(detection)())


@pytest.mark.skipif(
    torch.cuda.device_count() or torch.backends.mps.is_available(), reason="there is a GPU"
)
def test_gpu_without_one():
    with pytest.raises(
        DeviceError,
        match=r"^accelerator='gpu': there is none here \(cuda: .*; mps: .*\)\. Here are: cpu",
    ):
        resolve(accelerator="gpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.device_count(), reason="no GPU")
def test_gpu():
    # a process that has used CUDA can't be forked by later tests
    def choose_gpu(rank):
        assert resolve(accelerator="gpu", devices=1).strategy.root_device == torch.device("cuda", 0)
        assert decision(resolve(accelerator="auto", devices=1), "accelerator").choice == "cuda"

    Backend(lambda: "single_device").run(choose_gpu)


def test_unknown_name():
    with pytest.raises(UnknownAliasError, match=r"'cpuu'.*Did you mean 'cpu'"):
        resolve(accelerator="cpuu")


def test_a_class_and_other_things():
    with pytest.raises(
        ConfigurationError, match=r"accelerator=OneDevice is a class: .*accelerator=OneDevice\(\)"
    ):
        resolve(accelerator=OneDevice)
    with pytest.raises(
        ConfigurationError, match=r"accelerator=3: expected a name such as 'cpu'.* Here are: .*cpu"
    ):
        resolve(accelerator=3)


def test_a_strategy_instance_brings_its_own():
    accelerator = FourDevices()
    resolution = resolve(strategy=ManyDevices(accelerator=accelerator))
    assert resolution.strategy.accelerator is accelerator
    assert decision(resolution, "accelerator").reason == "the strategy brings it"
    assert (
        resolve(
            strategy=ManyDevices(accelerator=accelerator), accelerator=accelerator
        ).strategy.num_devices
        == 3
    )


def test_a_strategy_instance_and_an_argument_that_disagree():
    with pytest.raises(
        ConfigurationError, match="accelerator='cpu', but the strategy was made with FourDevices"
    ):
        resolve(strategy=ManyDevices(accelerator=FourDevices()), accelerator="cpu")
    assert resolve(strategy=ManyDevices(accelerator=CPUAccelerator()), accelerator="cpu")
    with pytest.raises(
        ConfigurationError, match="accelerator='gpu', but the strategy was made with CPUAcc"
    ):
        resolve(strategy=ManyDevices(accelerator=CPUAccelerator()), accelerator="gpu")


def test_parallel_devices_of_a_strategy_instance_are_used():
    devices = [torch.device("cpu")] * 2
    resolution = resolve(strategy=ManyDevices(parallel_devices=devices))
    assert resolution.strategy.parallel_devices == devices
    assert resolution.strategy.accelerator.name == "cpu"
    assert decision(resolution, "devices").reason == "the strategy brings parallel_devices"
    assert (
        resolve(strategy=ManyDevices(parallel_devices=devices), devices=2).strategy.num_devices == 2
    )


def test_parallel_devices_that_contradict_the_arguments():
    devices = [torch.device("cpu")] * 2
    with pytest.raises(
        DeviceError, match=r"devices=3, but the strategy was made with 2 parallel_devices"
    ):
        resolve(strategy=ManyDevices(parallel_devices=devices), devices=3)
    with pytest.raises(DeviceError, match=r"devices=1, but .* with 0 parallel_devices \(none\)"):
        resolve(strategy=ManyDevices(parallel_devices=[]), devices=1)
    with pytest.raises(
        DeviceError,
        match=r"has cpu among its parallel_devices, and accelerator 'fourdevices'.*'meta'",
    ):
        resolve(strategy=ManyDevices(parallel_devices=devices), accelerator=FourDevices())


@pytest.mark.parametrize("answer", [True, None, 2])
def test_auto_passes_over_an_accelerator_with_a_strange_answer(register, answer):
    register("accelerator", "acme", detecting(answer))
    register("accelerator", "other", OneDevice)
    expected = (
        r"'acme' of <in-process> was not considered. TypeError: detect\(\) returned "
        rf"{answer}; expected Found\("
    )
    with pytest.warns(RuntimeWarning, match=expected):
        resolution = resolve()
    assert decision(resolution, "accelerator").choice == "other"


def test_a_named_accelerator_that_cannot_be_asked_is_an_error(register):
    class Crashing(OneDevice):
        @classmethod
        def detect(cls):
            raise OSError("libacme.so: cannot open shared object file")

    register("accelerator", "acme", Crashing)
    with pytest.raises(
        PluginLoadError, match=r"The accelerator 'acme' \(.*\) can't be asked.* OSError: libacme.so"
    ) as caught:
        resolve(accelerator="acme")
    assert isinstance(caught.value.__cause__, OSError)


SRUN_OF_FOUR = {
    **{
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_NAME": "train",
        "SLURM_STEP_NUM_TASKS": "4",
    },
    **{"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "1"},
}


@pytest.mark.parametrize("devices", ["auto", -1, 4])
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SLURM_GPUS_PER_TASK", "1"),
        ("SLURM_TRES_PER_TASK", "cpu=8,gres/gpu=1"),
        ("SLURM_GPU_BIND", "single:1"),
    ],
)
def test_tasks_that_see_a_device_of_their_own(monkeypatch, devices, variable, value):
    """As by srun --ntasks-per-node=4 --gpus-per-task=1: device 0 of each is another one."""
    for name, text in {**SRUN_OF_FOUR, variable: value}.items():
        monkeypatch.setenv(name, text)
    resolution = resolve(
        accelerator=OneDevice(), devices=devices, strategy=DDPStrategy(process_group_backend="gloo")
    )
    assert resolution.strategy.parallel_devices == [torch.device("meta", 0)] * 4
    assert resolution.strategy.root_device == torch.device("meta", 0)
    assert decision(resolution, "devices").choice == "4 (index 0 of each)"


def test_tasks_that_share_a_device_are_an_error(monkeypatch):
    for name, text in SRUN_OF_FOUR.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(DeviceError, match="for device 1, but there are 1 here"):
        resolve(accelerator=OneDevice(), strategy="ddp")
