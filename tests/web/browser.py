"""A real browser, looking at a real server."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from playwright.sync_api import Browser, expect, sync_playwright
from starlette.types import ASGIApp

from tests.lacking import lacking
from tests.waiting import PATIENCE, wait_until


def chromium() -> str:
    """The browser of this machine."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        lacking("chromium is not installed: `make chromium` installs it")
    return found


@contextmanager
def browsing() -> Iterator[Browser]:
    # As root its own sandbox cannot be set up; a container's shared memory is often too small.
    arguments = ["--disable-dev-shm-usage", "--disable-gpu"]
    if os.getuid() == 0:
        arguments.append("--no-sandbox")
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def serving(site: ASGIApp) -> Iterator[str]:
    """The application on a port of its own; its address."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(site, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started, why="the server has started")
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
