# pyright: basic
"""Functions without annotations: nothing is known about them, so nothing is refused."""

from headgate import App

app = App("sqlite:///:memory:")


@app.task
def loose(first, second=2):
    return first


@app.task("named", max_concurrent=3)
def also(first):
    return first


loose.submit(1)
loose.submit(1, second=3).result()
also.submit(1)
also(1)
