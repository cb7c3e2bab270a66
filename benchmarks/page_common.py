"""What the page*.py scripts share: a cold Chromium, and what it takes until a page is drawn."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from statistics import median
from typing import Any

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Runs before the page's own scripts; the page sets `data-drawn` on its root when it is drawn, and
#: what counts is the frame after that.
CLOCK = """
    window.refused = [];
    addEventListener("securitypolicyviolation",
        event => refused.push(`${event.violatedDirective}: ${event.blockedURI}`));
    const look = new MutationObserver(() => {
        if (document.documentElement?.dataset.drawn === undefined) return;
        look.disconnect();
        requestAnimationFrame(() => setTimeout(
            () => { document.documentElement.dataset.drawnAt = performance.now(); }));
    });
    look.observe(document, {attributes: true, childList: true, subtree: true});
"""


def chromium() -> str:
    """Return where Chromium is, or end the script."""
    named = os.environ.get("MSPROBE_CHROMIUM")
    found = [path for name in ([named] if named else CHROMIUM) if (path := shutil.which(name))]
    return found[0] if found else sys.exit("no Chromium: `apt-get install chromium`")


def opened(
    driver: Any, path: Path, view: str = "", seconds: int = 60
) -> tuple[float, float, list[str]]:
    """Open a page in a Chromium that has just been started.

    Args:
        driver: what `sync_playwright` started.
        view: the view of a report page with which it opens, instead of its first; the window is so
            high that it is in sight.

    Returns:
        Milliseconds from the navigation to the frame after it is drawn; of processor time that the
        page's process had taken by then; and what was refused or went wrong.
    """
    running = driver.chromium.launch(executable_path=chromium(), args=["--disable-gpu"])
    wrong: list[str] = []
    try:
        page = running.new_page(viewport={"width": 1280, "height": 2000 if view else 900})
        page.on("pageerror", lambda error: wrong.append(f"exception: {error}"))
        page.on("console", lambda m: m.type == "error" and wrong.append(f"console: {m.text[:120]}"))
        page.add_init_script(CLOCK)
        fragment = f"#view={view}" if view else ""
        page.goto(path.resolve().as_uri() + fragment, wait_until="commit")
        try:
            found = page.wait_for_selector(
                "html[data-drawn-at]", state="attached", timeout=1000 * seconds
            )
        except driver_error() as error:
            wrong.append(f"never drawn: {error}".splitlines()[0])
            return float("nan"), float("nan"), wrong
        asked = page.context.new_cdp_session(page)
        asked.send("Performance.enable")
        values = {m["name"]: m["value"] for m in asked.send("Performance.getMetrics")["metrics"]}
        time = float(found.get_attribute("data-drawn-at"))
        return time, 1000 * values["ProcessTime"], wrong + page.evaluate("refused")
    finally:
        running.close()


def driver_error() -> type[Exception]:
    """Return what playwright raises."""
    from playwright.sync_api import Error

    return Error


def opening(driver: Any, path: Path, rounds: int, view: str = "") -> str:
    """Return in words how long it takes until a page is drawn, and what went wrong."""
    found = [opened(driver, path, view) for _ in range(rounds)]
    times = sorted(time for time, _, _ in found)
    wrong = {text for _, _, texts in found for text in texts}
    said = f"{median(times):.0f} ms ({times[0]:.0f} to {times[-1]:.0f}), "
    said += f"processor time {median(cpu for _, cpu, _ in found):.0f} ms"
    return said + (f"; {len(wrong)} wrong: {'; '.join(sorted(wrong)[:3])}" if wrong else "")
