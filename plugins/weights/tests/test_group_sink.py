import multiprocessing
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch import nn

from core import Callback, CheckpointError, ConfigurationError, Fabric, ModuleError
from core.callbacks import PushWeights
from core.cluster import reserve_port
from core_testing.ranks import Backend
from core_weights import GroupSink, TransferError, WeightReceiver
from support.tiny import Tiny, loader

FORK = multiprocessing.get_context("fork")
TIMEOUT = timedelta(minutes=2)
AT_ONCE_S = 60
"""Far less than the timeout: that a process has died is seen by its connection."""

# The tiny module can validate, and there is no need to.
pytestmark = pytest.mark.filterwarnings(r"ignore:\w+ has a validation_step\(\), and no validation loader was given")


@pytest.fixture
def fabric():
    return Fabric(accelerator="cpu", devices=1)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def begin():
    """Call a function with a queue in a process of its own, and return process and queue."""
    processes = []

    def start(function, *args):
        queue = FORK.Queue()
        processes.append(FORK.Process(target=function, args=(queue, *args), daemon=True))
        processes[-1].start()
        return processes[-1], queue

    yield start
    for process in processes:
        process.kill()
        process.join()


# processes ----------------------------------------------------------------------------------------------------------


def bits(tensors):
    return {name: tensor.reshape(-1).view(torch.uint8).tolist() for name, tensor in tensors}


def serve(queue, address, dies_after=None):
    """Put version and bits, each time by another method; at last the error, or that all has ended well."""
    model, receiver = Tiny(), WeightReceiver(address, timeout=TIMEOUT)
    try:
        while not receiver.has_ended:
            got = bits(receiver.receive())
            if got:
                queue.put((receiver.version, got))
            if receiver.version == dies_after:
                queue.close()
                queue.join_thread()
                os.kill(os.getpid(), signal.SIGKILL)
            if receiver.load_into(model):
                queue.put((receiver.version, bits(model.state_dict().items())))
        queue.put("ended")
    except TransferError as error:
        queue.put(str(error))


class States(Callback):
    """Keeps the state that the model has when it is sent."""

    def __init__(self):
        self.states = {}

    def on_train_start(self, trainer, module):
        self.states[trainer.global_step] = bits(
            (name, tensor.clone())
            for name, tensor in trainer.strategy.get_module_state_dict(module, layout="full").items()
        )

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.on_train_start(trainer, module)


def train(rank, port, num_steps):
    """The states on rank 0, or the error."""
    states, push = States(), PushWeights(GroupSink(port, receivers=2, timeout=TIMEOUT))
    began = time.monotonic()
    try:
        rank.trainer(callbacks=[states, push], max_steps=num_steps, max_epochs=1).fit(Tiny(), loader(16))
    except CheckpointError as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return states.states


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_receivers_get_each_version_bit_by_bit(begin, strategy):
    port = reserve_port(begin)
    engines = [begin(serve, f"127.0.0.1:{port}") for _ in range(2)]
    states, *_ = Backend(lambda: strategy, num_processes=2).run(train, port, 3)
    assert list(states) == [0, 1, 2, 3]
    assert states[0] != states[1] != states[2]
    for process, queue in engines:
        assert dict(queue.get(timeout=AT_ONCE_S) for _ in range(4)) == states
        assert queue.get(timeout=AT_ONCE_S) == "ended"
        process.join(AT_ONCE_S)
        assert process.exitcode == 0


@pytest.mark.slow
def test_a_receiver_that_dies_is_an_error_on_all_ranks_and_for_the_other_one(begin):
    port = reserve_port(begin)
    address = f"127.0.0.1:{port}"
    engines = [begin(serve, address, 2), begin(serve, address)]
    results = Backend(lambda: "ddp", num_processes=2).run(train, port, 8)
    for rank, (kind, text, duration) in enumerate(results):
        assert kind == "TransferError"
        assert text.startswith("On rank 0: Receiver " if rank else "Receiver ")
        assert "of 2 has died, or has not asked for" in text
        assert duration < AT_ONCE_S
    (_, _), (_, queue) = engines
    assert [queue.get(timeout=AT_ONCE_S)[0] for _ in range(3)] == [0, 1, 2]
    last = queue.get(timeout=AT_ONCE_S)
    while isinstance(last, tuple):  # it may have asked for the next version earlier
        last = queue.get(timeout=AT_ONCE_S)
    assert last.startswith(f"The trainer at {address} has died, or has sent nothing")


def die_after_one_version(_, port):
    fabric = Fabric(accelerator="cpu", devices=1)
    sink = GroupSink(port, timeout=TIMEOUT)
    sink.send(fabric, fabric.weights(fabric.setup(Tiny())))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_trainer_that_dies_is_an_error_for_the_receiver(begin):
    port = reserve_port(begin)
    _, queue = begin(serve, f"127.0.0.1:{port}")
    began = time.monotonic()
    begin(die_after_one_version, port)
    assert queue.get(timeout=AT_ONCE_S)[0] == 1
    assert "The trainer at 127.0.0.1" in queue.get(timeout=AT_ONCE_S)
    assert time.monotonic() - began < AT_ONCE_S


# one process --------------------------------------------------------------------------------------------------------


def receive_all(address, module, timeout=TIMEOUT):
    receiver, versions = WeightReceiver(address, timeout=timeout), []
    while receiver.load_into(module):
        versions.append(receiver.version)
    return versions


def num_threads():
    return len(os.listdir("/proc/self/task"))


def until_alone(number):
    """Whether so many threads, and no more, are left soon: the system counts one for a moment after its end."""
    end = time.monotonic() + 10
    while num_threads() > number and time.monotonic() < end:
        time.sleep(0.01)
    return num_threads() <= number


def test_close_leaves_no_thread_and_no_port(fabric, net):
    stream = fabric.weights(fabric.setup(net))
    begun = num_threads()
    sink = GroupSink(timeout=TIMEOUT)
    port = int(sink.address.rpartition(":")[2])
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(receive_all, sink.address, nn.Sequential(*net))
        sink.send(fabric, stream)
        sink.send(fabric, stream)
        sink.close()
        assert received.result(AT_ONCE_S) == [1, 2]
    assert until_alone(begun)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
    sink.close()


def test_an_error_leaves_none_either(fabric, net):
    """Not while its traceback lives, and with a receiver that still waits."""
    stream = fabric.weights(fabric.setup(net))
    begun = num_threads()
    sink = GroupSink(receivers=2, timeout=TIMEOUT)

    def receive_one(address):
        receiver = WeightReceiver(address, timeout=TIMEOUT)
        assert len(list(receiver.receive())) == len(net.state_dict())
        if receiver.rank == 2:
            receiver.close()
        with pytest.raises(ConfigurationError if receiver.rank == 2 else TransferError):
            next(receiver.receive())

    with ThreadPoolExecutor(2) as pool:
        received = [pool.submit(receive_one, sink.address) for _ in range(2)]
        sink.send(fabric, stream)
        with pytest.raises(TransferError, match=r"Receiver 2 of 2 .* has not asked for .* within 0:02:00") as caught:
            sink.send(fabric, stream)
        for each in received:
            each.result(AT_ONCE_S)
    assert until_alone(begun)
    del caught


def test_a_run_that_fails_is_an_error_for_the_receiver(fabric, net, pool):
    sink = GroupSink(timeout=TIMEOUT)
    received = pool.submit(receive_all, sink.address, nn.Sequential(*net))
    sink.send(fabric, fabric.weights(fabric.setup(net)))
    sink.close(OSError("no more data"))
    with pytest.raises(TransferError, match="The trainer at"):
        received.result(AT_ONCE_S)


def test_nobody_comes(fabric, net):
    sink = GroupSink(receivers=2, timeout=timedelta(seconds=1))
    with pytest.raises(TransferError, match=r"Of 2 receivers, 0 have come to 127\.0\.0\.1:\d+ within 0:00:01"):
        sink.send(fabric, fabric.weights(fabric.setup(net)))
    with pytest.raises(ConfigurationError, match=r"receivers=0\): expected 1 or more"):
        GroupSink(receivers=0)


def test_no_trainer_is_there(pool):
    port = reserve_port(pool)
    with pytest.raises(TransferError, match=r"The trainer at 127\.0\.0\.1:\d+ has died, or has sent nothing within"):
        WeightReceiver(f"127.0.0.1:{port}", timeout=timedelta(seconds=1))


def test_who_waits_too_long_ends(fabric, net, pool):
    sink = GroupSink(timeout=timedelta(seconds=1))
    received = pool.submit(WeightReceiver, sink.address, timeout=timedelta(seconds=1))
    with pytest.raises(TransferError, match=r"Receiver 1 of 1 has died, or has not asked for version 1 within 0:00:01"):
        sink.send(fabric, fabric.weights(fabric.setup(net)))
    received.result(AT_ONCE_S)
    waiting = pool.submit(receive_all, sink.address, nn.Sequential(*net), timedelta(seconds=1))
    sink.send(fabric, fabric.weights(fabric.setup(net)))  # opens it again
    with pytest.raises(TransferError, match="has sent nothing within 0:00:01"):
        waiting.result(AT_ONCE_S)


def test_one_receiver_too_many_is_refused(fabric, net, pool):
    sink = GroupSink(timeout=TIMEOUT)
    received = pool.submit(receive_all, sink.address, nn.Sequential(*net))
    sink.send(fabric, fabric.weights(fabric.setup(net)))
    with pytest.raises(ConfigurationError, match=r"All 1 receivers of .* have come before: GroupSink\(receivers="):
        WeightReceiver(sink.address, timeout=TIMEOUT)
    sink.close()
    assert received.result(AT_ONCE_S) == [1]


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (nn.Sequential(nn.Linear(2, 3)), "it has no '1.weight'; it has no '1.bias'; .*; and more"),
        (
            nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)),
            r"'2.weight' is of shape \(2, 3\), not \(1, 3\)",
        ),
        (
            nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1), nn.Linear(1, 1)),
            "'3.weight' doesn't come",
        ),
        (
            nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).to("meta"),
            "'0.weight' is on the meta device",
        ),
    ],
    ids=["fewer", "another shape", "more", "meta"],
)
def test_another_module_is_refused(fabric, net, pool, module, text):
    sink = GroupSink(timeout=TIMEOUT)
    received = pool.submit(receive_all, sink.address, module)
    with pytest.raises(TransferError, match=r"has not asked for '0\.weight' of version 1"):
        sink.send(fabric, fabric.weights(fabric.setup(net)))
    with pytest.raises(ModuleError, match=f"Sequential isn't what the trainer sends: {text}"):
        received.result(AT_ONCE_S)


def test_a_tied_tensor_comes_once_and_the_module_keeps_its_dtypes(fabric, net, pool):
    served = nn.Sequential(*net, nn.Linear(3, 1)).double()
    served[3].weight, served[3].bias = served[2].weight, served[2].bias
    sink = GroupSink(timeout=TIMEOUT)
    received = pool.submit(receive_all, sink.address, served)
    own = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    sink.send(fabric, fabric.weights(fabric.setup(own), dtype=torch.bfloat16))
    sink.close()
    assert received.result(AT_ONCE_S) == [1]
    assert torch.equal(served[3].weight, own[2].weight.bfloat16().double())


def test_a_version_is_received_to_its_end(fabric, net, pool):
    sink = GroupSink(timeout=TIMEOUT)

    def leave(address):
        receiver = WeightReceiver(address, timeout=TIMEOUT)
        next(receiver.receive())
        with pytest.raises(ConfigurationError, match=r"receive\(\) was left before its end"):
            next(receiver.receive())

    left = pool.submit(leave, sink.address)
    with pytest.raises(TransferError, match=r"has not asked for '0\.bias' of version 1"):
        sink.send(fabric, fabric.weights(fabric.setup(net)))
    left.result()
