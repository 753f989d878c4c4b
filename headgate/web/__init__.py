"""The dashboard, its API and its metrics, as an ASGI application (`headgate[web]`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

try:
    import jinja2 as _jinja2
    import prometheus_client as _prometheus
    import starlette as _starlette
except ImportError as error:
    from headgate.errors import ConfigError, how_to_install

    raise ConfigError(
        f"the dashboard needs {error.name}, which is not installed: {how_to_install('web')}"
    ) from error

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from headgate.web.access import Access, Role, User
from headgate.web.guard import HEADERS, Guard
from headgate.web.redact import Redactor
from headgate.web.routes import routes
from headgate.web.site import Site, path_of, site_of
from headgate.web.stream import Streams

if TYPE_CHECKING:
    from headgate.app import App

del _jinja2, _prometheus, _starlette

__all__ = ["Access", "Role", "User", "create_app"]


def create_app(
    app: App,
    *,
    access: Access | None = None,
    read_only: bool = False,
    everywhere: bool = False,
    redact: Mapping[str, Iterable[str]] | None = None,
    key_metrics: Iterable[str] = (),
) -> Starlette:
    """The dashboard of an app, to be served alone or mounted under a prefix.

    >>> from headgate.web import Access, create_app                     # doctest: +SKIP
    >>> site = Starlette(routes=[                                       # doctest: +SKIP
    ...     Mount("/jobs", create_app(app, access=Access({token: "operate"}))),
    ... ])

    Without `access`, only clients on this machine are let in; `everywhere=True` says that what it
    is mounted in looks after that. `redact` names arguments that are not shown, by task (`"*"`:
    all of them). `key_metrics` names keyed limits of which metrics tell each key apart.
    """
    access = access or Access()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        site.close()

    made = Starlette(
        routes=routes(),
        middleware=[
            Middleware(Guard, access=access, read_only=read_only, everywhere=everywhere),
        ],
        exception_handlers={HTTPException: _refused, Exception: _broken},
        lifespan=lifespan,
    )
    site = Site(app, access, Redactor(redact), frozenset(key_metrics))
    # What leads on from a slash too many is made from the `Host` that was sent, and from the scheme
    # behind a proxy: ours is in `_refused`.
    made.router.redirect_slashes = False
    made.state.site = site
    made.state.streams = Streams()
    return made


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "only these are sent here"
    if path_of(request).startswith("/api"):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    path = path_of(request)
    if error.status_code == 404 and path.endswith("/") and path.strip("/"):
        # Within this dashboard: of several slashes at the beginning one is left.
        query = request.scope.get("query_string", b"").decode("latin-1")
        there = f"{request.scope.get('root_path', '')}/{path.strip('/')}"
        return RedirectResponse(f"{there}?{query}" if query else there, 307)
    title = "Not found" if error.status_code == 404 else error.detail
    message = "There is no such page." if error.status_code == 404 else error.detail
    answer = site_of(request).problem(request, error.status_code, title, message)
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer


def _broken(request: Request, error: Exception) -> Response:
    # Who looks is told no more than that: the rest is in the log. This is answered outside of the
    # guard, so what browsers may do with it is said here.
    message = "the dashboard failed; its log tells why"
    if path_of(request).startswith("/api"):
        return JSONResponse({"error": message}, 500, HEADERS)
    return PlainTextResponse(f"{message}\n", 500, HEADERS)
