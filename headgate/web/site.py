"""What all pages share: the store, what is remembered of it, and how an answer is made."""

from __future__ import annotations

import functools
import hashlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jinja2
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from headgate.errors import (
    HeadgateError,
    JobNotFound,
    ScheduleNotFound,
    StoreBusy,
    StoreUnavailable,
)
from headgate.limits import split_group
from headgate.stores import shown
from headgate.stores.glances import glancing
from headgate.web import charts, words
from headgate.web.bulk import Bulks
from headgate.web.guard import Form
from headgate.web.looks import Looks, shares, sharing
from headgate.web.metrics import Metrics
from headgate.web.redact import Redactor, without_passwords
from headgate.web.sampler import FRESH, Sampler
from headgate.web.survey import Surveys
from headgate.why import age

if TYPE_CHECKING:
    from headgate.app import App
    from headgate.stores.protocol import Store, Trouble
    from headgate.web.access import Access, Visitor

log = logging.getLogger("headgate.web")

HERE = Path(__file__).parent

TROUBLES_EVERY = 10.0

NAV = (
    ("/", "Overview"),
    ("/groups", "Groups"),
    ("/jobs", "Jobs"),
    ("/queues", "Queues"),
    ("/workers", "Workers"),
    ("/schedules", "Schedules"),
    ("/fairness", "Fairness"),
    ("/events", "Events"),
)

DONE = {
    "set": "The limit was set.",
    "reset": "File and code decide the limit again.",
    "pause": "Paused: nothing more starts there.",
    "resume": "Resumed.",
    "weight": "The weight was set.",
    "reset-weight": "The weight was taken back.",
    "released": "The slot is free.",
    "cancel": "Cancelled; what runs was told to stop.",
    "retry": "It is in line again.",
    "move": "Moved.",
    "run": "A run was submitted.",
    "stopped": "Stopped: what was done stays done.",
}


class Site:
    """One dashboard over one app."""

    def __init__(
        self, app: App, access: Access, redactor: Redactor, key_metrics: frozenset[str]
    ) -> None:
        self.app = app
        self.access = access
        self.redactor = redactor
        self.metrics = Metrics(lambda: app.store, key_metrics)
        self.sampler = Sampler(lambda: app.store)
        self.surveys = Surveys(lambda: app.store)
        self.bulks = Bulks(lambda: app.store)
        self.looks = Looks(lambda: app.store)
        self.sampler.watchers.append(self.metrics.count)
        self._templates = _environment()
        self._troubles: list[Trouble] = []
        self._troubles_at = float("-inf")
        self._troubles_lock = threading.Lock()

    @property
    def store(self) -> Store:
        return cast("Store", self.looks) if shares() else self.app.store

    def forget(self) -> None:
        """Something was changed: who looks next sees it."""
        self.sampler.forget()
        self.looks.forget()

    def troubles(self) -> list[Trouble]:
        """What looks stuck; looked for anew every few seconds at most, whoever asks."""
        with self._troubles_lock:
            if time.monotonic() - self._troubles_at > TROUBLES_EVERY:
                self._troubles = self.store.oddities()
                self._troubles_at = time.monotonic()
            return self._troubles

    def close(self) -> None:
        self.bulks.close()
        self.surveys.close()
        self.sampler.close()

    def page(self, request: Request, template: str, status: int = 200, **context: Any) -> Response:
        state = request.state
        visitor: Visitor | None = state.visitor
        root = request.scope.get("root_path", "")

        def url(path: str, **params: object) -> str:
            return f"{root}{path}{words.query(params)}"

        def group_url(group: str, **params: object) -> str:
            return url("/groups/show", group=group, **params)

        def linked(text: str) -> Markup:
            return words.with_links(without_passwords(text), url)

        path = path_of(request)
        text = self._templates.get_template(template).render(
            url=url,
            group_url=group_url,
            linked=linked,
            nav=[(url(to), name, _is_under(path, to)) for to, name in NAV],
            visitor=visitor,
            needs_login=self.access.required,
            operates=visitor is not None and visitor.role == "operate" and not state.read_only,
            read_only=state.read_only,
            csrf_token=state.csrf,
            told=DONE.get(request.query_params.get("done", "")),
            store_name=shown(self.app.url),
            style=url("/static/style.css", v=_digest("style.css")),
            script=url("/static/live.js", v=_digest("live.js")),
            icon=url("/static/icon.svg", v=_digest("icon.svg")),
            **context,
        )
        return HTMLResponse(text, status)

    def problem(self, request: Request, status: int, title: str, message: str) -> Response:
        return self.page(request, "problem.html", status, title=title, message=message)


Page = Callable[[Request], Response]


def site_of(request: Request) -> Site:
    return request.app.state.site


def path_of(request: Request) -> str:
    return request.scope["path"].removeprefix(request.scope.get("root_path", "")) or "/"


def guarded(page: Page) -> Page:
    """A page whose errors are told as a page."""

    @functools.wraps(page)
    def answer(request: Request) -> Response:
        try:
            if request.method == "POST":
                try:
                    return page(request)
                finally:
                    site_of(request).forget()
            with glancing(FRESH, texts=False), sharing("x-headgate-live" in request.headers):
                return page(request)
        except HeadgateError as error:
            status, title = status_of(error)
            return site_of(request).problem(request, status, title, str(error))

    return answer


def status_of(error: HeadgateError) -> tuple[int, str]:
    if isinstance(error, JobNotFound | ScheduleNotFound | NotThere):
        return 404, "Not found"
    if isinstance(error, StoreBusy | StoreUnavailable):
        log.warning("the store: %s", error)
        return 503, "The store is not available"
    return 400, "That was refused"


class NotThere(HeadgateError):
    """What was asked for by name is not there."""


def form_of(request: Request) -> Form:
    return request.state.form


def by(request: Request) -> str:
    """Who asks, for the record of changes."""
    visitor: Visitor = request.state.visitor
    return f"{visitor.name} (dashboard)"


def back_to(request: Request, path: str, **params: object) -> Response:
    root = request.scope.get("root_path", "")
    return RedirectResponse(f"{root}{path}{words.query(params)}", 303)


def _is_under(path: str, to: str) -> bool:
    return path == to if to == "/" else path == to or path.startswith(f"{to}/")


@functools.cache
def _digest(file: str) -> str:
    return hashlib.sha256((HERE / "static" / file).read_bytes()).hexdigest()[:12]


def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        # Of an upgrade under a running dashboard, templates without their code would be the half.
        auto_reload=False,
        cache_size=-1,
        autoescape=True,
        finalize=words.plainly,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = cast("dict[str, Any]", made.filters)
    filters |= {
        "age": age,
        "ago": words.ago,
        "count": words.count,
        "cut": words.cut,
        "iso": words.iso,
        "kind": words.event_kind,
        "limit_change": words.limit_change,
        "limit_value": words.limit_value,
        "no_passwords": without_passwords,
        "pretty": words.pretty,
        "raw": words.Raw,
        "said": words.said,
        "stamp": words.stamp,
    }
    names = cast("dict[str, Any]", made.globals)
    names |= {"gauge": charts.gauge, "share": charts.share, "split_group": split_group}
    return made
