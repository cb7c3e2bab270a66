"""Pages in a headless Chromium, and everything they did there that a page on disk must not do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: Names the Chromium, or Chrome, that is to be used.
VARIABLE = "MSPROBE_CHROMIUM"
#: A directory: screenshots are kept there.
SCREENSHOTS = "MSPROBE_SCREENSHOTS"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 60  # that a page may take, on a machine that does much else
MOST_HIGH = 6000  # pixels of a picture
#: Where in the window a point of the first chart lies, of which bokeh knows the scales.
POINT = """
([x, y]) => {
    const view = Bokeh.index[Bokeh.documents[0].roots()[0].id].child_views[0];
    view.el.scrollIntoView({block: "center"});
    const {frame} = view, {left, top} = view.el.getBoundingClientRect();
    const {top: high, height} = frame.bbox, share = {top: 0.03, parted: 0.1, foot: 0.97}[y];
    return [left + frame.x_scale.compute(x),
        top + (share === undefined ? frame.y_scale.compute(y) : high + share * height)];
}
"""


def chromium() -> str:
    """Return where Chromium is; skip the test without it."""
    named = os.environ.get(VARIABLE)
    found = [path for name in ([named] if named else CHROMIUM) if (path := shutil.which(name))]
    if not found:
        pytest.skip(
            f"there is no {named or 'Chromium'}, in which these tests open pages: "
            f"`apt-get install chromium`, or name one by {VARIABLE}"
        )
    return found[0]


class Opened:
    """One page, open in a window of its own.

    Attributes:
        page: playwright's page.
        forbidden: errors on the console, exceptions, violations of the policy, dialogs, windows,
            downloads, and requests but for the file itself, in order.
    """

    def __init__(self, context: Any, url: str) -> None:
        self.page, self.forbidden = context.new_page(), []
        self._own = url
        page = self.page
        page.set_default_timeout(SECONDS * 1000)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.forbidden.append(f"exception: {error}"))
        page.on("dialog", self._asked)
        page.on("popup", lambda window: self.forbidden.append(f"window: {window.url}"))
        page.on("request", self._requested)
        page.on("frameattached", lambda frame: self.forbidden.append(f"frame: {frame.url}"))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.forbidden.append(f"{message.type}: {message.text}")

    def _asked(self, dialog: Any) -> None:
        self.forbidden.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _requested(self, request: Any) -> None:
        where = request.url.partition("#")[0]
        if where != self._own and not where.startswith(("blob:", "data:")):
            self.forbidden.append(f"request: {where[:200]}")

    def go(self, fragment: str = "") -> Opened:
        """Open the page, or go to another fragment of it; return when its view is drawn."""
        self.page.goto(self._own + (f"#{fragment}" if fragment else ""))
        return self.drawn()

    def drawn(self) -> Opened:
        """Wait until the view is drawn: what was done last has had a frame to begin with it."""
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        self.page.wait_for_selector("html[data-drawn]", state="attached")
        return self

    def press(self, *keys: str) -> Opened:
        """Press keys, and wait until the view is drawn."""
        for key in keys:
            self.page.keyboard.press(key)
        return self.drawn()

    def click(self, selector: str) -> Opened:
        """Click, and wait until the view is drawn."""
        self.page.locator(selector).first.click()
        return self.drawn()

    def point_at(self, x: float, y: float | str) -> str:
        """Move the mouse to a point of the first chart; return what is told there.

        Args:
            y: a value, or `top`, `parted` or `foot`, where findings, the first divergence and
                values without a height are marked.
        """
        self.drawn()  # a chart that is laid out anew, as after printing, moves its points
        self.page.mouse.move(*self.page.evaluate(POINT, [x, y]))
        return self.text("#course .tip")

    def click_here(self) -> Opened:
        """Click where the mouse is, and wait until the view is drawn."""
        self.page.mouse.down()
        self.page.mouse.up()
        return self.drawn()

    def text(self, selector: str = "body") -> str:
        """Return the text that is seen of the first element of a selector."""
        return str(self.page.locator(selector).first.inner_text())

    def texts(self, selector: str) -> list[str]:
        """Return the texts that are seen of all of them."""
        return [str(text) for text in self.page.locator(selector).all_inner_texts()]

    def values(self, selector: str, attribute: str) -> list[str]:
        """Return an attribute of all elements of a selector."""
        ask = "(found, name) => found.map(e => e.getAttribute(name))"
        found: list[str] = self.page.locator(selector).evaluate_all(ask, attribute)
        return found

    def nothing_forbidden(self) -> None:
        """Fail if the page has done what it must not do."""
        assert not self.forbidden, self.forbidden

    @property
    def fragment(self) -> str:
        """What stands behind the # of the address."""
        return str(self.page.url.partition("#")[2])

    def screenshot(self, name: str, directory: Path) -> Path:
        """Write a picture of the whole page into the directory of `SCREENSHOTS`, or into this.

        The window is made as high as the page meanwhile: what is drawn when one scrolls to it is
        drawn, too.
        """
        path = Path(os.environ.get(SCREENSHOTS) or directory) / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        usual = self.page.viewport_size
        high = min(self.page.evaluate("document.documentElement.scrollHeight"), MOST_HIGH)
        self.page.set_viewport_size({**usual, "height": max(high, usual["height"])})
        self.page.evaluate("scrollTo(0, 0)")
        self.drawn().page.screenshot(path=path)
        self.page.set_viewport_size(usual)
        return path


class Browser:
    """One headless Chromium."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    @contextmanager
    def open(
        self,
        path: Path,
        fragment: str = "",
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        locale: str = "en-US",
        cut: bool = False,
    ) -> Iterator[Opened]:
        """Open a file as a double click does, and close it again.

        Nothing of what a page must not do may have happened meanwhile. A file that was cut off
        draws no view.
        """
        context = self._chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            locale=locale,
            accept_downloads=False,
        )
        try:
            opened = Opened(context, path.resolve().as_uri())
            if cut:
                opened.page.goto(path.resolve().as_uri())
            yield opened if cut else opened.go(fragment)
            opened.nothing_forbidden()
        finally:
            context.close()


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium; skip the test where it, or what drives it, is not installed."""
    executable = chromium()
    driver = pytest.importorskip("playwright.sync_api", reason="`pip install playwright`")
    with driver.sync_playwright() as started:
        # Of a window without a screen; as root it has no sandbox.
        running = started.chromium.launch(executable_path=executable, args=["--disable-gpu"])
        try:
            yield Browser(running)
        finally:
            running.close()
