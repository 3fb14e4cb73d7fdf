"""A server as Kubeflow Trainer's: TLS, a token, and the limits of a TrainJob's status."""

import datetime
import ipaddress
import json
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs/line/status"


def write_certificate(folder):
    """A key, and a certificate for 127.0.0.1 that it has signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "status server")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key").write_bytes(key.private_bytes(pem, *plain))
    (folder / "ca.crt").write_bytes(certificate.public_bytes(pem))


def complaint(body):
    """What the schema of a TrainJob's status refuses; nothing if it is one."""
    status = json.loads(body)["trainerStatus"]
    if status.keys() - {
        "progressPercentage",
        "estimatedRemainingSeconds",
        "metrics",
        "lastUpdatedTime",
    }:
        return "unknown field"
    if datetime.datetime.fromisoformat(status["lastUpdatedTime"]).tzinfo is None:
        return "lastUpdatedTime has no zone"
    for name, highest in (("progressPercentage", 100), ("estimatedRemainingSeconds", 2**31 - 1)):
        number = status.get(name, 0)
        if type(number) is not int or not 0 <= number <= highest:
            return f"{name} is out of bounds"
    metrics = status.get("metrics", [])
    if len(metrics) > 256:
        return "too many metrics"
    for each in metrics:
        if each.keys() != {"name", "value"} or not all(
            type(part) is str and 0 < len(part) <= 64 for part in each.values()
        ):
            return "a metric is no pair of short texts"
    return ""


class Handler(BaseHTTPRequestHandler):
    """Answers as Kubeflow's: 403 to another token, 404 elsewhere, 422 to what is no status."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server = self.server
        server.may_answer.wait(20)
        if self.path != PATH:
            self.answer(404, {"kind": "Status", "message": "Not found"})
        elif self.headers["Authorization"] != f"Bearer {server.token}":
            self.answer(403, {"kind": "Status", "message": "Forbidden"})
        elif message := complaint(body):
            self.answer(422, {"kind": "Status", "message": message})
        else:
            server.statuses.append(json.loads(body)["trainerStatus"])
            self.answer(200, json.loads(body))

    def answer(self, code, content):
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *arguments):
        pass


@contextmanager
def running(folder):
    """A server with its files in a folder: `ca.crt`, `token`."""
    write_certificate(folder)
    (folder / "token").write_text("of-the-pod\n")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.statuses, server.token, server.may_answer = [], "of-the-pod", threading.Event()
    server.may_answer.set()
    server.url = f"https://127.0.0.1:{server.server_port}{PATH}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.may_answer.set()
        server.shutdown()
        thread.join()
        server.server_close()
