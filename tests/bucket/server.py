"""Object stores for the tests: moto's server, in memory and quick, and SeaweedFS, a real one."""

from __future__ import annotations

import atexit
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

import botocore.session

BUCKET = "headgate-tests"
START_SECONDS = 60
_PR_SET_PDEATHSIG = 1
_shared: dict[str, Server] = {}


class Server:
    """A server in a process of its own, by its address."""

    def __init__(self, process: subprocess.Popen[bytes], endpoint: str) -> None:
        self.process = process
        self.endpoint = endpoint

    def url(self, prefix: str, cache: Path, **options: str) -> str:
        query = urlencode({"endpoint": self.endpoint, "cache": str(cache), **options})
        return f"s3://{BUCKET}/{prefix}?{query}"

    def fresh(self, cache: Path, **options: str) -> str:
        """The url of an empty store."""
        return self.url(f"test-{secrets.token_hex(6)}", cache, **options)

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def credentials() -> None:
    """For servers that believe everybody."""
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "tests")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "tests")


def client(endpoint: str) -> object:
    credentials()
    return botocore.session.Session().create_client(
        "s3", endpoint_url=endpoint, region_name="us-east-1"
    )


def shared() -> Server:
    """Moto's, one for each process that runs tests."""
    if "moto" not in _shared:
        server = _shared["moto"] = _start_moto()
        atexit.register(server.close)
    return _shared["moto"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _start_moto() -> Server:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - nothing but one system call
    )
    server = Server(process, f"http://127.0.0.1:{port}")
    await_bucket(server)
    return server


def await_bucket(server: Server) -> None:
    """Until the server answers, and holds the bucket."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            client(server.endpoint).create_bucket(Bucket=BUCKET)  # type: ignore[attr-defined]
        except Exception:
            if time.monotonic() > deadline or server.process.poll() is not None:
                raise
            time.sleep(0.1)
        else:
            return


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
