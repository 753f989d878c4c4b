"""What cannot be used is refused, and told in words that help and hold no secret."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headgate.errors import ConfigError, StoreUnavailable, StoreVersion
from headgate.stores.bucket import patience
from headgate.stores.bucket.store import BucketStore
from tests.bucket.memory import MemoryObjects
from tests.bucket.server import shared

SECRET = "wJalrXUtnFEMIwouldBeASecret"


@contextmanager
def server(refuses: tuple[str, ...] = (), status: int = 0, code: str = "") -> Iterator[str]:
    """A tiny object store; of the conditions it keeps those in `refuses`. Or all it ever answers
    is this status."""
    held: dict[str, tuple[bytes, str]] = {}
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _failed(self, status: int, code: str) -> None:
            self._answer(status, f"<Error><Code>{code}</Code></Error>".encode())

        def do_GET(self) -> None:
            if status:
                return self._failed(status, code)
            with lock:
                found = held.get(self.path)
            if found is None:
                return self._failed(404, "NoSuchKey")
            if self.headers.get("If-None-Match") == found[1] and "get" in refuses:
                return self._answer(304)
            return self._answer(200, found[0], ETag=found[1])

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if status:
                return self._failed(status, code)
            with lock:
                found = held.get(self.path)
                wanted = self.headers.get("If-Match")
                if "create" in refuses and self.headers.get("If-None-Match") and found:
                    return self._failed(412, "PreconditionFailed")
                if "replace" in refuses and wanted and (found is None or found[1] != wanted):
                    return self._failed(412, "PreconditionFailed")
                held[self.path] = (body, f'"{hash(body)}"')
                return self._answer(200, ETag=held[self.path][1])

        def do_DELETE(self) -> None:
            self._answer(204)

        def log_message(self, format: str, *args: object) -> None:
            return

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_address[1]}"
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setattr(patience, "PATIENCE", 0.3)


def refused(url: str) -> str:
    with pytest.raises((StoreUnavailable, ConfigError)) as told:
        BucketStore(url).close()
    error: BaseException | None = told.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__
    return str(told.value)


@pytest.mark.parametrize(
    "keeps",
    [(), ("create",), ("create", "get"), ("replace", "get"), ("create", "replace")],
    ids=lambda keeps: "keeps " + (" and ".join(keeps) or "none"),
)
def test_a_server_that_ignores_a_condition(tmp_path: Path, keeps: tuple[str, ...]) -> None:
    with server(keeps) as endpoint:
        told = refused(f"s3://tests/x?endpoint={endpoint}&cache={tmp_path}")
        assert "this server cannot be used" in told
        assert "ignores the conditions of writes" in told
        assert "SeaweedFS" in told
        # Nor is it believed the next time.
        assert "cannot be used" in refused(f"s3://tests/x?endpoint={endpoint}&cache={tmp_path}")


def test_a_server_that_keeps_them_all(tmp_path: Path) -> None:
    with server(("create", "replace", "get")) as endpoint:
        BucketStore(f"s3://tests/x?endpoint={endpoint}&cache={tmp_path}").close()


def test_no_such_bucket(tmp_path: Path) -> None:
    url = f"s3://no-such-bucket/x?endpoint={shared().endpoint}&cache={tmp_path}"
    assert "there is no bucket 'no-such-bucket'; create it first" in refused(url)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "AccessDenied", "the credentials must allow"),
        (403, "InvalidAccessKeyId", "the credentials must allow"),
        (403, "RequestTimeTooSkewed", "set this machine's clock"),
        (400, "ExpiredToken", "must be renewed"),
        (503, "SlowDown", "asks to slow down"),
        (500, "InternalError", "the server failed"),
        (501, "NotImplemented", "501"),
    ],
)
def test_a_server_that_refuses(tmp_path: Path, status: int, code: str, words: str) -> None:
    with server(status=status, code=code) as endpoint:
        told = refused(f"s3://tests/x?endpoint={endpoint}&cache={tmp_path}")
        assert words in told
        assert code in told


def test_no_network(tmp_path: Path) -> None:
    url = f"s3://tests/x?endpoint=http://127.0.0.1:9&cache={tmp_path}"
    assert "cannot be reached" in refused(url)


def test_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"s3://tests/x?endpoint={shared().endpoint}&cache={tmp_path}"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    told = refused(url)
    assert "no credentials were found" in told
    assert "AWS_ACCESS_KEY_ID" in told
    assert "nobody" in refused(url + "&profile=nobody")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"s3://AKID:{SECRET}@bucket/x", "a url holds no credentials"),
        (f"s3://bucket/x?secret={SECRET}", "unknown option 'secret'"),
        ("s3://bucket/x?shards=2", "unknown option 'shards'"),
        ("s3://bucket/x?poll=never", "poll must be"),
        ("s3://bucket/x?endpoint=host:9000", "endpoint must begin with"),
        ("s3://Bucket/x", "cannot be a bucket"),
    ],
)
def test_a_url_that_cannot_be_meant(url: str, words: str) -> None:
    assert words in refused(url)


def test_secrets_in_an_endpoint_are_not_shown(tmp_path: Path) -> None:
    refused(f"s3://tests/x?endpoint=http://AKID:{SECRET}@127.0.0.1:9&cache={tmp_path}")


def test_what_is_found_is_believed_for_a_day(tmp_path: Path) -> None:
    objects = MemoryObjects()
    for _ in range(2):
        BucketStore(f"s3://tests/x?cache={tmp_path}", objects=objects).close()
    assert objects.counts["delete"] == 1


def test_a_store_of_several_shards(tmp_path: Path) -> None:
    objects = MemoryObjects()
    objects.create("x/shards.json", b'{"format":1,"shards":4}')
    for _ in range(2):
        with pytest.raises(StoreVersion, match=r"x/shards\.json .* or name another prefix"):
            BucketStore(f"s3://tests/x?cache={tmp_path}", objects=objects)
    assert list(objects.held) == ["x/shards.json"], "nothing was written beside it"


def test_a_store_in_use_is_opened_by_one_read(tmp_path: Path) -> None:
    objects = MemoryObjects()
    for _ in range(2):
        before = objects.counts["read"]
        store = BucketStore(f"s3://tests/x?cache={tmp_path}", objects=objects)
        store.close()
    assert objects.counts["read"] == before + 1
