"""PgBouncer in transaction mode, in front of the tests' server."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest

from tests.postgres import server as servers
from tests.postgres.server import OwnServer, die_with_parent, free_port, server_user
from tests.waiting import wait_until

MISSING = (
    "PgBouncer is not installed, so nothing was shown of what happens behind it: run"
    " `make pgbouncer` (Debian's package of that name), or put the binary on the PATH"
)


def find() -> Path | None:
    found = shutil.which(
        "pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    )
    return Path(found) if found else None


class PgBouncer:
    """`url(...)` is that of the server, by way of PgBouncer."""

    def __init__(self, server: OwnServer, bin: Path) -> None:
        self.server = server
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="headgate-bouncer-", dir="/tmp"))
        users = self.folder / "users"
        users.write_text('"postgres" ""\n')
        config = self.folder / "pgbouncer.ini"
        # A handful of server connections for many clients: every transaction may meet another.
        config.write_text(
            f"""
[databases]
* = host={server.folder} port={server.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
logfile = {self.folder}/log
admin_users = postgres
server_idle_timeout = 30
"""
        )
        user = server_user()
        if user is not None:
            for path in (self.folder, users, config):
                os.chown(path, user.pw_uid, user.pw_gid)
        self.bin, self.config = bin, config
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [self.bin, self.config],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - no threads when it starts
            **self.server.as_user(),
        )
        wait_until(self._answers, why=self._log)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self._log()
        try:
            with psycopg.connect(self.url(), prepare_threshold=None, connect_timeout=5):
                return True
        except psycopg.OperationalError:
            return False

    def _log(self) -> str:
        log = self.folder / "log"
        said = log.read_text(errors="replace") if log.exists() else ""
        return f"PgBouncer has started:\n{said[-2000:]}"

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """SIGQUIT: at once, whatever its clients are in the middle of; SIGINT: when no
        transaction is under way."""
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def url(self, database: str = "postgres", **options: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}" + (query and f"?{query}")

    def fresh(self) -> str:
        """The url of an empty store of its own."""
        return self.url(schema=self.server.fresh().rpartition("schema=")[2])

    def close(self) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


_shared: list[PgBouncer] = []


def installed() -> Path:
    """Where it cannot be had, the test fails: a run that could not look has not passed."""
    bin = find()
    if bin is None:
        pytest.fail(MISSING)
    return bin


def shared() -> PgBouncer:
    """The one in front of the server that all tests of this process share."""
    if not _shared:
        bin, server = installed(), servers.shared()
        if not isinstance(server, OwnServer):
            pytest.fail("PgBouncer is put in front of a server of our own: unset HEADGATE_TEST_PG")
        bouncer = PgBouncer(server, bin)
        owner = os.getpid()
        atexit.register(lambda: bouncer.close() if os.getpid() == owner else None)
        bouncer.start()
        _shared.append(bouncer)
    return _shared[0]
