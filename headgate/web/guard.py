"""What stands before every page: who asks, may they, did they mean it; and what browsers may do
with the answer."""

from __future__ import annotations

import ipaddress
import secrets
from typing import Any
from urllib.parse import parse_qsl, quote

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.web.access import Access, Throttle, Visitor

SESSION_COOKIE = "headgate_session"
SEED_COOKIE = "headgate_seed"
MAX_BODY = 256 * 1024
MAX_FIELDS = 200

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
OPEN = ("/login", "/static/")
SAFE = ("GET", "HEAD", "OPTIONS")

Form = dict[str, str]


class Refused(Exception):
    """The request is answered with this, and goes no further."""

    def __init__(self, response: Response) -> None:
        self.response = response


class Guard:
    """An ASGI middleware. Afterwards `scope["state"]` has `visitor`, `csrf` and `form`."""

    def __init__(
        self, app: ASGIApp, *, access: Access, read_only: bool = False, everywhere: bool = False
    ) -> None:
        self._app = app
        self._access = access
        self._read_only = read_only
        self._everywhere = everywhere
        self._throttle = Throttle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        conn = HTTPConnection(scope)
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        seed = conn.cookies.get(SEED_COOKIE, "")
        fresh = not (len(seed) == 43 and seed.isascii())
        if fresh:
            seed = secrets.token_urlsafe(32)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
                if fresh and not path.startswith(("/api", "/static/", "/metrics")):
                    cookie = f"{SEED_COOKIE}={seed}; {cookie_options(scope)}"
                    headers.append("set-cookie", cookie)
            await send(message)

        state: dict[str, Any] = scope.setdefault("state", {})
        try:
            self._check_reach(conn)
            visitor = self._visitor(conn, path)
            owner = "" if visitor is None else visitor.name
            state |= {
                "visitor": visitor,
                "read_only": self._read_only,
                "throttle": self._throttle,
                "csrf": self._access.sign("csrf", f"{seed}\0{owner}"),
                "form": {},
            }
            if scope["method"] not in SAFE:
                receive = await self._check_write(conn, path, visitor, receive, state)
        except Refused as refused:
            await refused.response(scope, receive, answer)
            return
        await self._app(scope, receive, answer)

    # --- who -----------------------------------------------------------------------------------

    def _check_reach(self, conn: HTTPConnection) -> None:
        """Without credentials only this machine is let in, and only under a name of its own: a
        page of some other site may have its name resolve to this address."""
        if self._access.required or self._everywhere:
            return
        client = conn.client
        host = conn.headers.get("host", "")
        if (client is not None and not is_loopback(client.host)) or not is_loopback(_name(host)):
            raise Refused(
                PlainTextResponse(
                    "This dashboard has no users and no token, so only this machine may use it,"
                    " by a loopback address. Give it some: see docs/dashboard.md.\n",
                    403,
                )
            )

    def _visitor(self, conn: HTTPConnection, path: str) -> Visitor | None:
        if not self._access.required:
            return Visitor("local", "operate", "nobody")
        header = conn.headers.get("authorization")
        if header is not None:
            address = address_of(conn)
            wait = self._throttle.attempt(address)
            if wait:
                raise Refused(too_many(wait, path))
            visitor = self._access.by_header(header)
            if visitor is not None:
                self._throttle.forgive(address)
        else:
            visitor = self._access.by_session(conn.cookies.get(SESSION_COOKIE, ""))
        if visitor is not None or path.startswith(OPEN):
            return visitor
        if header is not None or path.startswith(("/api", "/metrics", "/stream")):
            headers = {"www-authenticate": 'Bearer realm="headgate"'}
            raise Refused(_problem(path, 401, "give a token or a user: see /login", headers))
        query = conn.scope.get("query_string", b"").decode("latin-1")
        back = quote(path + (f"?{query}" if query else ""), safe="")
        raise Refused(RedirectResponse(f"{conn.scope.get('root_path', '')}/login?next={back}", 303))

    # --- may they, did they mean it ----------------------------------------------------------

    async def _check_write(
        self,
        conn: HTTPConnection,
        path: str,
        visitor: Visitor | None,
        receive: Receive,
        state: dict[str, Any],
    ) -> Receive:
        entering = path in ("/login", "/logout")
        if not entering:
            if self._read_only:
                raise Refused(_problem(path, 403, "this dashboard is read-only"))
            if visitor is None or visitor.role != "operate":
                raise Refused(_problem(path, 403, "your role is view: it changes nothing"))
        self._check_origin(conn, path)
        body = await _read(receive, path)
        if path.startswith("/api"):
            kind = conn.headers.get("content-type", "").partition(";")[0].strip().lower()
            # A form of another site can send no JSON, unless its browser has asked us first.
            if kind != "application/json":
                raise Refused(_problem(path, 415, "send JSON, as application/json"))
        else:
            form = _form(body, path)
            state["form"] = form
            given = form.pop("csrf", "")
            by_token = visitor is not None and visitor.by == "token"
            if not by_token and not secrets.compare_digest(given.encode(), state["csrf"].encode()):
                raise Refused(
                    _problem(path, 403, "this form is out of date: go back, reload, try again")
                )
        return _again(body)

    def _check_origin(self, conn: HTTPConnection, path: str) -> None:
        site = conn.headers.get("sec-fetch-site", "same-origin")
        origin = conn.headers.get("origin")
        host = conn.headers.get("host", "")
        other = origin is not None and not (host and origin.partition("://")[2] == host)
        if site not in ("same-origin", "none") or other:
            raise Refused(_problem(path, 403, "that came from another site"))


def _again(body: bytes) -> Receive:
    """The body once more, for who reads it behind us."""
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _read(receive: Receive, path: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(Response(status_code=400))
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY:
            raise Refused(_problem(path, 413, f"at most {MAX_BODY:,} bytes are read"))
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def _form(body: bytes, path: str) -> Form:
    try:
        cells = parse_qsl(
            body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        )
    except (ValueError, UnicodeDecodeError):
        raise Refused(_problem(path, 400, "that is no form of ours")) from None
    return dict(cells)


def _problem(
    path: str, status: int, message: str, headers: dict[str, str] | None = None
) -> Response:
    if path.startswith("/api"):
        return JSONResponse({"error": message}, status, headers)
    return PlainTextResponse(f"{message}\n", status, headers)


def too_many(wait: float, path: str = "/login") -> Response:
    message = "too many wrong credentials came from your address: wait a minute"
    return _problem(path, 429, message, {"retry-after": str(int(wait) + 1)})


def cookie_options(scope: Scope) -> str:
    path = scope.get("root_path", "") or "/"
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return f"Path={path}; HttpOnly; SameSite=Strict{secure}"


def address_of(conn: HTTPConnection) -> str:
    return conn.client.host if conn.client is not None else ""


def is_loopback(host: str) -> bool:
    """
    >>> is_loopback("localhost"), is_loopback("127.0.0.9"), is_loopback("::1"), is_loopback("a.b")
    (True, True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name(host: str) -> str:
    """The name in a `Host` header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] or host if ":" in host else host
