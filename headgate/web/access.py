"""Who may come in, and what they may do: tokens, users, sessions and a brake on guessing."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headgate.errors import ConfigError

Role = Literal["view", "operate"]
ROLES: tuple[Role, ...] = ("view", "operate")

SESSION = 12 * 3600.0
SIGNED = "session with an id"
"""Another word when what is signed has other parts: one is never read as the other."""
SHORTEST_TOKEN = 16
SHORTEST_PASSWORD = 8


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who was let in."""

    name: str
    role: Role
    by: Literal["nobody", "session", "token", "password"]
    """How: `nobody` asked, or by what. Browsers send sessions and passwords by themselves, so
    these do not show that a person wanted what is asked."""


@dataclass(frozen=True, slots=True)
class User:
    password: str = field(repr=False)
    role: Role = "view"


@dataclass(frozen=True, slots=True)
class _Session:
    id: str
    ends: float
    visitor: Visitor


class Access:
    """The tokens and users that are let in; without any, whoever can reach it is.

    >>> Access(tokens={"a-token-of-your-own-making": "operate"}).required
    True
    """

    def __init__(
        self,
        tokens: Mapping[str, Role] | None = None,
        users: Mapping[str, User] | None = None,
    ) -> None:
        self._tokens: dict[str, Role] = dict(tokens or {})
        self._users: dict[str, User] = dict(users or {})
        for token, role in self._tokens.items():
            _check_role(role)
            if len(token) < SHORTEST_TOKEN or not (token.isascii() and token.isprintable()):
                raise ConfigError(
                    f"a token of the dashboard needs at least {SHORTEST_TOKEN} printable ASCII"
                    " characters: make one with `openssl rand -hex 24`"
                )
        for name, user in self._users.items():
            _check_role(user.role)
            if not name or ":" in name or not name.isprintable():
                raise ConfigError(f"user name {name!r}: it must be printable, without ':'")
            if len(user.password) < SHORTEST_PASSWORD:
                raise ConfigError(
                    f"the password of {name!r} is shorter than {SHORTEST_PASSWORD} characters"
                )
        self._key = self._derive()
        self._ending = threading.Lock()
        self._ended: dict[str, float] = {}
        """Sessions that were ended by those who had them, until they end by themselves."""

    @property
    def required(self) -> bool:
        return bool(self._tokens or self._users)

    @property
    def has_users(self) -> bool:
        return bool(self._users)

    def _derive(self) -> bytes:
        """The key of sessions: the same in every process with these credentials, and another when
        one of them changes. Slow to try, so that who may only look cannot guess from a session of
        their own what others may log in with."""
        if not self.required:
            return secrets.token_bytes(32)
        told = repr((sorted(self._tokens.items()), sorted(self._users.items(), key=str)))
        parts = [*self._tokens, *(user.password for user in self._users.values())]
        secret = "\0".join([told, *sorted(parts)]).encode()
        return hashlib.scrypt(secret, salt=b"headgate dashboard", n=2**14, r=8, p=1, dklen=32)

    # --- credentials -----------------------------------------------------------------------

    def by_token(self, given: str) -> Visitor | None:
        found: Visitor | None = None
        # All of them are compared, so that time does not tell which came near.
        for token, role in self._tokens.items():
            if hmac.compare_digest(token.encode(), given.encode("utf-8", "replace")):
                found = Visitor(f"token ({role})", role, "token")
        return found

    def by_password(self, name: str, password: str) -> Visitor | None:
        found: Visitor | None = None
        given = f"{name}:{password}".encode("utf-8", "replace")
        for known, user in self._users.items():
            if hmac.compare_digest(f"{known}:{user.password}".encode(), given):
                found = Visitor(known, user.role, "password")
        return found

    def by_header(self, header: str) -> Visitor | None:
        """What an `Authorization` header says."""
        kind, _, rest = header.partition(" ")
        if kind.lower() == "bearer":
            return self.by_token(rest.strip())
        if kind.lower() == "basic":
            try:
                name, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError, ValueError):
                return None
            # A token may stand as the password of any name: scrapers often know no other way.
            return self.by_password(name, password) or self._token_as_password(password)
        return None

    def _token_as_password(self, password: str) -> Visitor | None:
        found = self.by_token(password)
        return None if found is None else Visitor(found.name, found.role, "password")

    # --- sessions ----------------------------------------------------------------------------

    def open_session(self, visitor: Visitor) -> str:
        ends, id = int(time.time() + SESSION), secrets.token_urlsafe(12)
        told = f"{ends}.{id}.{visitor.role}.{visitor.name}"
        text = base64.urlsafe_b64encode(told.encode()).decode()
        return f"{text}.{self.sign(SIGNED, text)}"

    def by_session(self, cookie: str) -> Visitor | None:
        session = self._session(cookie)
        if session is None or session.id in self._ended:
            return None
        return session.visitor

    def end_session(self, cookie: str) -> None:
        """Whoever has a copy of it is not let in any more. This process remembers so until the
        session would have ended by itself; others with the same credentials do not know."""
        session = self._session(cookie)
        if session is None:
            return
        now = time.time()
        with self._ending:
            for id in [id for id, ends in self._ended.items() if ends < now]:
                del self._ended[id]
            self._ended[session.id] = session.ends

    def _session(self, cookie: str) -> _Session | None:
        text, _, signature = cookie.partition(".")
        # As bytes: text is compared only where it is ASCII, and anybody can send other cookies.
        if not hmac.compare_digest(
            self.sign(SIGNED, text).encode(), signature.encode("utf-8", "replace")
        ):
            return None
        ends, id, role, name = base64.urlsafe_b64decode(text).decode().split(".", 3)
        if float(ends) < time.time() or role not in ROLES:
            return None
        return _Session(id, float(ends), Visitor(name, role, "session"))

    def sign(self, purpose: str, text: str) -> str:
        told = f"{purpose}\0{text}".encode("utf-8", "replace")
        return hmac.new(self._key, told, hashlib.sha256).hexdigest()


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise ConfigError(f"{role!r} is no role of the dashboard: view or operate")


def network_of(address: str) -> str:
    """Whom guesses are counted against: an address, or the network of one line, in which every
    line that has IPv6 has more addresses than could be counted.

    >>> network_of("203.0.113.9"), network_of("2001:db8::1:2"), network_of("::ffff:203.0.113.9")
    ('203.0.113.9', '2001:db8::/64', '203.0.113.9')
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), 64), strict=False))


class Throttle:
    """So many wrong credentials from one address within a minute, then none are looked at."""

    PERIOD = 60.0
    FAILURES = 8
    ADDRESSES = 5000

    def __init__(self) -> None:
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def attempt(self, address: str) -> float:
        """Seconds for which credentials from there are not looked at; 0: they are, and count as
        wrong until `forgive`. Counted before they are looked at: guesses sent at once would
        otherwise all be looked at before the first of them had failed."""
        with self._lock:
            now = time.monotonic()
            times = self._failures.setdefault(network_of(address), deque(maxlen=self.FAILURES))
            self._failures.move_to_end(network_of(address))
            while times and times[0] <= now - self.PERIOD:
                times.popleft()
            if len(times) >= self.FAILURES:
                return times[0] + self.PERIOD - now
            times.append(now)
            while len(self._failures) > self.ADDRESSES:
                self._failures.popitem(last=False)
            return 0.0

    def forgive(self, address: str) -> None:
        """The last attempt from there was right."""
        with self._lock:
            times = self._failures.get(network_of(address))
            if times:
                times.pop()
