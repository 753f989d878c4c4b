"""Logging in and out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from headgate.web.access import SESSION, Throttle
from headgate.web.guard import SESSION_COOKIE, address_of, cookie_options, too_many
from headgate.web.site import back_to, form_of, site_of


def login(request: Request) -> Response:
    site = site_of(request)
    if not site.access.required:
        return back_to(request, "/")
    wrong = False
    if request.method == "POST":
        throttle: Throttle = request.state.throttle
        address = address_of(request)
        wait = throttle.attempt(address)
        if wait:
            return too_many(wait)
        form = form_of(request)
        name, password = form.get("name", ""), form.get("password", "")
        if name:
            visitor = site.access.by_password(name, password)
        else:
            visitor = site.access.by_token(password)
        if visitor is not None:
            throttle.forgive(address)
            answer = RedirectResponse(_inside(request, form.get("next", "")), 303)
            cookie = f"{SESSION_COOKIE}={site.access.open_session(visitor)}"
            answer.headers.append(
                "set-cookie", f"{cookie}; Max-Age={int(SESSION)}; {cookie_options(request.scope)}"
            )
            return answer
        wrong = True
    next = request.query_params.get("next", "") or form_of(request).get("next", "")
    return site.page(
        request,
        "login.html",
        403 if wrong else 200,
        wrong=wrong,
        next=next,
        has_users=site.access.has_users,
    )


def logout(request: Request) -> Response:
    site_of(request).access.end_session(request.cookies.get(SESSION_COOKIE, ""))
    answer = back_to(request, "/login")
    answer.headers.append(
        "set-cookie", f"{SESSION_COOKIE}=; Max-Age=0; {cookie_options(request.scope)}"
    )
    return answer


def _inside(request: Request, next: str) -> str:
    """Where they wanted to go, if that is a page of ours: never another site."""
    root = request.scope.get("root_path", "")
    plain = next.isascii() and next.isprintable() and "\\" not in next
    if not plain or not next.startswith("/") or next.startswith(("//", "/login", "/logout")):
        next = "/"
    return f"{root}{next}"
