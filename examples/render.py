"""Units, one of several, and a slot by hand: two machines of unequal size.

    python examples/render.py

A scene needs one of two machines, and some of the licences that all programs share. A script
that is no job takes its licences from the same limit.
"""

from __future__ import annotations

import tempfile
import time

from headgate import App, Context, OneOf, Worker

folder = tempfile.TemporaryDirectory()
app = App(f"sqlite:///{folder.name}/jobs.db")
licences = app.limit("licences", 7)
app.limit("machine-a", 2)
app.limit("machine-b", 1)


@app.task(limits=[licences.units(2), OneOf("machine-a", "machine-b")])
def render(ctx: Context, scene: int) -> str:
    time.sleep(0.05)
    return f"scene {scene} on {ctx.group}"


def main() -> None:
    handles = app.submit_many([render.call(scene) for scene in range(6)])
    with app.slot("licences", units=3, timeout=5):
        # Four licences are left, so two scenes at a time, though three places are free.
        Worker(app, "example", burst=True).run()
    for handle in handles:
        print(handle.result())
    app.close()
    folder.cleanup()


if __name__ == "__main__":
    main()
