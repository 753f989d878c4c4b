"""Pictures of every page, light, dark and as wide as a phone, for people to look at.

python -m tests.web.screenshots FOLDER
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from headgate.web import create_app
from tests.web import scene as scenes
from tests.web.browser import browsing, serving
from tests.web.pages import addresses

LOOKS = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 800}, "color_scheme": "light"},
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        scene = scenes.make(f"sqlite:///{place}/jobs.db")
        with serving(create_app(scene.app)) as url, browsing() as browser:
            for look, options in LOOKS.items():
                context = browser.new_context(**options)  # type: ignore[arg-type]
                page = context.new_page()
                for name, path in addresses(scene).items():
                    page.goto(url + path)
                    page.screenshot(path=folder / f"{name}-{look}.png", full_page=True)
                context.close()
        scene.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
