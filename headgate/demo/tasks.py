"""The tasks of the demo. Each job writes what it did to the execution log, for the checker."""

from __future__ import annotations

import asyncio
import os
import time

from headgate.app import App
from headgate.context import Context
from headgate.execlog import recording
from headgate.limits import OneOf
from headgate.tasks import AsyncTask, SyncTask

LOG = "HEADGATE_DEMO_LOG"
"""The environment variable that names the execution log."""

LIMITS: dict[str, int | None] = {"mail-api": 6, "tenant": 4, "render-a": 2, "render-b": 1}


def declare(
    app: App,
) -> tuple[AsyncTask[[str, float], None], SyncTask[[str, float], str | None]]:
    """Two tasks: mails share one provider, renderings go to one of two machines, and no
    tenant has more than its share of either."""
    mail_api = app.limit("mail-api", LIMITS["mail-api"])
    tenants = app.limit("tenant", LIMITS["tenant"], key="tenant")
    app.limit("render-a", LIMITS["render-a"])
    app.limit("render-b", LIMITS["render-b"])

    @app.task("demo.mail", limits=[mail_api, tenants])
    async def mail(ctx: Context, tenant: str, seconds: float) -> None:
        with recording(os.environ[LOG], ctx, groups=held(tenant, "mail-api"), turn=tenant):
            await asyncio.sleep(seconds)

    @app.task("demo.render", limits=[tenants, OneOf("render-a", "render-b")])
    def render(ctx: Context, tenant: str, seconds: float) -> str | None:
        with recording(os.environ[LOG], ctx, groups=held(tenant, ctx.group), turn=tenant):
            time.sleep(seconds)
        return ctx.group

    return mail, render


def held(tenant: str, shared: str | None) -> dict[str, int]:
    """What a job must hold by its own arguments, whatever the engine believes it gave it."""
    return {f"tenant/{tenant}": 1, shared or "no machine was picked": 1}


app = App()
mail, render = declare(app)
