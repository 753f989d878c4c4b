"""Object stores for the tests: moto's server, in memory and quick, and SeaweedFS, a real one."""

from __future__ import annotations

import atexit
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import botocore.session

from tests.waiting import PATIENCE, wait_until

BUCKET = "headgate-tests"
_PR_SET_PDEATHSIG = 1
_shared: dict[str, Server] = {}


class Server:
    """A server in a process of its own, by its address."""

    def __init__(self, process: subprocess.Popen[bytes], endpoint: str) -> None:
        self.process = process
        self.endpoint = endpoint

    def url(self, prefix: str, cache: Path) -> str:
        credentials()
        query = urlencode({"endpoint": self.endpoint, "cache": str(cache)})
        return f"s3://{BUCKET}/{prefix}?{query}"

    def fresh(self, cache: Path) -> str:
        """The url of an empty store."""
        return self.url(f"test-{secrets.token_hex(6)}", cache)

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


class SeaweedFS(Server):
    """A real server, which keeps on disk what it has answered: it may be killed and started again
    (about 15 s), and is where it was."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headgate-seaweedfs-"))
        # Its parts talk to each other by ports of their own, all of which can be in use.
        self._ports = {
            option: free_port()
            for option in (
                "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
                "filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc",
            )
        }  # fmt: skip
        super().__init__(self._run(), f"http://127.0.0.1:{self._ports['s3.port']}")
        await_bucket(self)

    def _run(self) -> subprocess.Popen[bytes]:
        ports = [f"-{option}={port}" for option, port in self._ports.items()]
        # Not as one of the processes that a test started and looks for at its end.
        env = {name: value for name, value in os.environ.items() if "HEADGATE" not in name}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("weed")),
                    "server",
                    f"-dir={self.folder}",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    "-filer",
                    "-s3",
                    "-iam=false",
                    *ports,
                    "-s3.port.iceberg=0",
                    "-s3.port.lance=0",
                    "-volume.max=20",
                    "-master.volumeSizeLimitMB=64",
                    "-master.telemetry=false",
                ],
                cwd=self.folder,
                env=env,
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - nothing but one system call
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start(self) -> None:
        """Again, after `kill`; it may take a while to answer."""
        self.process = self._run()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def credentials() -> None:
    """For servers that believe everybody."""
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "tests")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "tests")


def client(endpoint: str) -> Any:
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


def real() -> SeaweedFS:
    """SeaweedFS, one for each process that runs tests which need it."""
    if "seaweedfs" not in _shared:
        server = _shared["seaweedfs"] = SeaweedFS()
        atexit.register(server.close)
    server = _shared["seaweedfs"]
    assert isinstance(server, SeaweedFS)
    return server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _start_moto() -> Server:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("moto_server.py")), str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - nothing but one system call
    )
    server = Server(process, f"http://127.0.0.1:{port}")
    await_bucket(server)
    return server


def await_bucket(server: Server) -> None:
    """Until the server answers, holds the bucket, and takes what is put there."""
    asked = client(server.endpoint)
    failed: list[Exception] = []

    def answers() -> bool:
        assert server.process.poll() is None, failed
        try:
            with suppress(asked.exceptions.BucketAlreadyOwnedByYou):
                asked.create_bucket(Bucket=BUCKET)
            asked.put_object(Bucket=BUCKET, Key="started", Body=b"")
        except Exception as error:
            failed[:] = [error]
            return False
        return True

    wait_until(answers, 2 * PATIENCE, why=lambda: f"the object store has started: {failed}")


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
