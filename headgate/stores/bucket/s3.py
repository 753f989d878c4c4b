"""S3 and what is compatible with it, through botocore.

Botocore's own retries are off: of a conditional write it would repeat one that was applied, and
report the second answer, a refusal, as if the first had never been.
"""

from __future__ import annotations

import email.utils
import functools
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    ProfileNotFound,
)

from headgate.errors import ConfigError, StoreUnavailable
from headgate.stores.bucket.clock import steady
from headgate.stores.bucket.objects import UNCHANGED, Got, Listed, Lost, Trouble
from headgate.stores.bucket.url import Address

T = TypeVar("T")

_LATE = frozenset((404, 409, 412))
"""What servers answer to a conditional write that lost a race, one as good as the other."""
_NEVER_SENT = (EndpointConnectionError, ConnectTimeoutError)


class S3:
    """One bucket of an S3-compatible server; any thread may use it."""

    def __init__(self, address: Address, *, timeout: float = 10.0) -> None:
        self._address = address
        self._timeout = timeout
        self._counts: Counter[str] = Counter()
        self._skew = (float("-inf"), float("inf"))
        self._guard = threading.Lock()
        self._guarded_in = os.getpid()
        self._pid = 0
        self._client: Any = None

    def _connected(self) -> Any:
        if self._guarded_in != os.getpid():
            # A fork: a thread of the parent's may have held this, and is not here to let it go.
            self._guard, self._guarded_in = threading.Lock(), os.getpid()
        with self._guard:
            if self._pid != os.getpid():  # a fork must not share its parent's connections
                self._client, self._pid = self._connect(), os.getpid()
            return self._client

    def _connect(self) -> Any:
        address = self._address
        logger = logging.getLogger("botocore")
        if logger.level == logging.NOTSET:
            # At INFO it tells where credentials were found, at DEBUG tokens: not in our logs,
            # unless somebody asks for its own.
            logger.setLevel(logging.WARNING)
        try:
            session = botocore.session.Session(profile=address.profile)
            # botocore makes its clients from data: nothing is known of them before they are there.
            return session.create_client(  # pyright: ignore[reportUnknownMemberType]
                "s3",
                endpoint_url=address.endpoint,
                region_name=address.region or (None if address.endpoint is None else "us-east-1"),
                verify=address.ca_bundle or address.verify,
                config=Config(
                    retries={"total_max_attempts": 1},
                    s3={"addressing_style": "path" if address.path_style else "auto"},
                    connect_timeout=min(5.0, self._timeout),
                    read_timeout=self._timeout,
                    max_pool_connections=32,
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
        except (ProfileNotFound, NoRegionError, ValueError) as error:
            raise ConfigError(f"{address.shown}: {error}") from error

    # --- requests -----------------------------------------------------------------------------

    def get(self, key: str, known: str | None = None) -> Got | None:
        condition = {} if known is None else {"IfNoneMatch": known}

        def fetch() -> Got:
            answer = self._call("get_object", Key=key, **condition)
            return Got(answer["Body"].read(), answer["ETag"])

        try:
            return self._send("read", fetch)
        except ClientError as error:
            status = _status(error)
            if status == 304:
                return UNCHANGED
            if status == 404 and _code(error) != "NoSuchBucket":
                return None
            raise self._translated(error) from error

    def create(self, key: str, body: bytes) -> str:
        return self._put(key, body, {"IfNoneMatch": "*"})

    def replace(self, key: str, body: bytes, known: str) -> str:
        return self._put(key, body, {"IfMatch": known})

    def _put(self, key: str, body: bytes, condition: dict[str, str]) -> str:
        def store() -> str:
            kind = {"ContentType": "application/json"}
            return self._call("put_object", Key=key, Body=body, **kind, **condition)["ETag"]

        try:
            return self._send("write", store)
        except ClientError as error:
            if _status(error) in _LATE and _code(error) != "NoSuchBucket":
                raise Lost(f"{key} was written by somebody else") from error
            raise self._translated(error, writing=True) from error

    def delete(self, key: str) -> None:
        try:
            self._send("delete", lambda: self._call("delete_object", Key=key))
        except ClientError as error:
            if _status(error) != 404:
                raise self._translated(error, writing=True) from error

    def list(self, prefix: str) -> Iterator[Listed]:
        more: dict[str, str] = {}
        while True:
            asked = functools.partial(self._call, "list_objects_v2", Prefix=prefix, **more)
            try:
                page = self._send("list", asked)
            except ClientError as error:
                raise self._translated(error) from error
            now = steady() + self.offset()
            for one in page.get("Contents", ()):
                yield Listed(one["Key"], now - one["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _call(self, operation: str, **parameters: Any) -> Any:
        method = getattr(self._connected(), operation)
        sent = steady()
        try:
            answer = method(Bucket=self._address.bucket, **parameters)
        except ClientError as error:
            # A refusal tells the time too, as does "not modified": often the first we hear.
            self._see_clock(error.response, sent)
            raise
        self._see_clock(answer, sent)
        return answer

    def _send(self, kind: str, request: Callable[[], T]) -> T:
        self._counts[kind] += 1
        try:
            return request()
        except NoCredentialsError as error:
            raise StoreUnavailable(
                f"{self._address.shown}: no credentials were found; set AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY, name a profile (?profile=…), or give the machine a role"
            ) from error
        except _NEVER_SENT as error:
            raise Trouble(
                f"{self._address.shown} cannot be reached: {error}; check endpoint=… or region=…,"
                " and whether the server runs"
            ) from error
        except ClientError:
            raise
        except (BotoCoreError, OSError) as error:
            # It broke off somewhere on the way there or back.
            raise Trouble(
                f"{self._address.shown} did not answer: {error}", maybe=kind == "write"
            ) from error

    def _translated(self, error: ClientError, *, writing: bool = False) -> StoreUnavailable:
        status, code = _status(error), _code(error)
        shown = self._address.shown
        if code == "NoSuchBucket":
            return StoreUnavailable(
                f"{shown}: there is no bucket {self._address.bucket!r}; create it first"
            )
        if code == "RequestTimeTooSkewed":
            return StoreUnavailable(
                f"{shown}: refused ({code}); set this machine's clock, which is far off"
            )
        if status in (401, 403):
            return StoreUnavailable(
                f"{shown}: refused ({code}); the credentials must allow to get, put, delete and"
                " list objects there"
            )
        if status in (429, 503) or code == "SlowDown":
            return Trouble(f"{shown} asks to slow down ({code})")
        if status == 409:
            return Trouble(f"{shown}: a conflict with another request ({code})")
        if code in ("RequestTimeout", "IncompleteBody", "BadDigest"):
            return Trouble(f"{shown} did not get the whole request ({code})")
        if code in ("ExpiredToken", "InvalidToken", "TokenRefreshRequired"):
            return StoreUnavailable(f"{shown}: refused ({code}); the credentials must be renewed")
        if status >= 500:
            return Trouble(f"{shown}: the server failed ({status} {code})", maybe=writing)
        return StoreUnavailable(f"{shown}: {status} {code}")

    # --- the clock ----------------------------------------------------------------------------

    def _see_clock(self, answer: Any, sent: float) -> None:
        received = steady()
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date is None:
            return
        try:
            there = email.utils.parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        # A header of whole seconds, written at some moment between our two looks at the clock.
        low, high = there - received, there + 1.0 - sent
        known_low, known_high = self._skew
        narrowed = max(low, known_low), min(high, known_high)
        # Bounds that exclude each other: somebody set a clock meanwhile.
        self._skew = narrowed if narrowed[0] <= narrowed[1] else (low, high)

    def offset(self) -> float:
        low, high = self._skew
        return min(max(0.0, low), high) if high > float("-inf") else 0.0

    def requests(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        if self._client is not None and self._pid == os.getpid():
            self._client.close()


def _status(error: ClientError) -> int:
    # Told to be optional, and always there in an answer of a server.
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])  # pyright: ignore[reportTypedDictNotRequiredAccess]


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
