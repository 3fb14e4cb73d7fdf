"""The sink, against a server with vLLM's routes. A real one is by hand:
benchmarks/vllm_updates.py.
"""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from core import Fabric
from core_vllm import VLLMSink
from core_weights import TransferError


class Server(HTTPServer):
    """Notes requests; answers `refuse` with 500, as vLLM does where a worker has raised."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.loaded, self.refuse = [], {}, None
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        route, server = self.path.removeprefix("/"), self.server
        server.requests.append((route, content))
        if route == "init_weight_transfer_engine":
            server.folder = content["init_info"]["folder"]
        if route == "update_weights":
            server.loaded = load_file(
                f"{server.folder}/weights-{content['update_info']['version']}.safetensors"
            )
        self.send_response(500 if route == server.refuse else 200)
        self.end_headers()
        self.wfile.write(b'{"error": "no such engine"}')

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as made:
        thread = Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def fabric():
    return Fabric(accelerator="cpu", devices=1)


def test_each_version_is_loaded_by_the_routes(server, fabric, tmp_path):
    model = fabric.setup(nn.Linear(2, 3))
    sink, stream = VLLMSink(server.url, tmp_path / "weights"), fabric.weights(model)
    for _ in range(2):
        with torch.no_grad():
            model.weight.add_(1)
        sink.send(fabric, stream)
        assert torch.equal(server.loaded["weight"], model.weight)
    update = ["start_weight_update", "update_weights", "finish_weight_update"]
    assert [route for route, _ in server.requests] == [
        "init_weight_transfer_engine",
        *update,
        *update,
    ]
    assert server.requests[-1] == ("finish_weight_update", {"weight_version": "2"})
    sink.close()
    sink.send(fabric, stream)
    assert server.requests[7][0] == "init_weight_transfer_engine"


def test_what_the_server_says_is_an_error(server, fabric, tmp_path):
    server.refuse = "update_weights"
    stream = fabric.weights(fabric.setup(nn.Linear(2, 3)))
    with pytest.raises(
        TransferError, match=r"update_weights answers 500: .*no such engine.*core-folder"
    ):
        VLLMSink(server.url, tmp_path).send(fabric, stream)


def test_a_server_that_is_not_there_is_an_error(fabric, tmp_path):
    stream = fabric.weights(fabric.setup(nn.Linear(2, 3)))
    with Server() as gone:
        url = gone.url
    with pytest.raises(TransferError, match="Is the server there"):
        VLLMSink(url, tmp_path, timeout=5).send(fabric, stream)
