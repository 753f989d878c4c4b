"""A browser without scripts: keeps cookies, fills in forms. The server is a real one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.web import Access, User
from tests.web.browser import serving

OPERATOR = "operate-token-0123456789"
VIEWER = "view-token-0123456789abc"


def access() -> Access:
    return Access(
        {OPERATOR: "operate", VIEWER: "view"},
        {"operator": User("correct horse", "operate"), "viewer": User("only looking", "view")},
    )


class Visit(httpx.Client):
    def csrf(self, path: str) -> str:
        """What the forms of a page carry."""
        page = self.get(path)
        assert page.status_code == 200, page.text
        found = re.search(r'name="csrf" value="([0-9a-f]+)"', page.text)
        assert found, f"{path} has no form"
        return found[1]

    def form(self, path: str, to: str, /, **fields: str) -> httpx.Response:
        """Open a page and send one of its forms."""
        return self.post(to, data={"csrf": self.csrf(path), **fields})

    def log_in(self, password: str, name: str = "") -> httpx.Response:
        return self.form("/login", "/login", name=name, password=password)


@contextmanager
def visiting(site: ASGIApp, prefix: str = "", **options: object) -> Iterator[Visit]:
    with serving(site) as url, Visit(base_url=url + prefix, timeout=30, **options) as visit:  # type: ignore[arg-type]
        yield visit


def from_afar(site: ASGIApp, address: str = "203.0.113.9") -> ASGIApp:
    """The same application, as another machine would reach it."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["client"] = (address, 40000)
        await site(scope, receive, send)

    return served


def spoken(site: ASGIApp, scheme: str) -> ASGIApp:
    """The same application, behind a server that speaks http or https."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["scheme"] = scheme
        await site(scope, receive, send)

    return served
