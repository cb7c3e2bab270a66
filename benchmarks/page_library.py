"""What a chart library costs in the report page: plotly and bokeh, out of their wheels.

    pip install plotly bokeh playwright && python benchmarks/page_library.py [--rounds N]

One file, opened from disk in a Chromium that has just been started, draws one chart of 10 series of
two runs, 100 points each; the library stands in it as it is, or compressed. The page has the policy
of the report page: no network, no eval. A page that draws nothing is what comes off. What is not
installed is left out; the Chromium is the system's, or the one MSPROBE_CHROMIUM names.
"""

from __future__ import annotations

import argparse
import base64
import importlib.metadata
import importlib.util
import json
import math
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from page_common import opening

NONCE = "bm9uY2U="
POLICY = (
    f"default-src 'none'; script-src 'nonce-{NONCE}'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
)
PAGE = """<!doctype html><html><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}"></head><body>
<div id="chart" style="width: 1200px; height: 500px"></div>{library}
<script nonce="{nonce}">
const drawn = () => {{ document.documentElement.dataset.drawn = "chart"; }};
const frame = () => new Promise(done => requestAnimationFrame(done));
(async () => {{ {load} {draw} drawn(); }})();
</script></body></html>
"""
DECODED = """
const bytes = Uint8Array.from(atob(document.getElementById("library").textContent),
                              letter => letter.charCodeAt(0));
const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
const script = document.createElement("script");
script.nonce = NONCE;
script.textContent = await new Response(stream).text();
document.head.append(script);
""".replace("NONCE", json.dumps(NONCE))
STEPS, SERIES = range(100), range(10)


def lines() -> Iterator[tuple[str, list[float]]]:
    """Yield the name and the values of each line."""
    for side in "AB":
        for series in SERIES:
            apart = 0.01 * (side == "B")
            yield f"{side} {series}", [math.sin(s / 9 + series) + apart * s for s in STEPS]


def plotly() -> tuple[str, str]:
    """Return plotly's script, and what draws the chart with it."""
    import plotly.offline

    given = [{"type": "scatter", "mode": "lines", "name": n, "y": v} for n, v in lines()]
    draw = f'await Plotly.newPlot("chart", {json.dumps(given)}, {{}}); await frame();'
    return plotly.offline.get_plotlyjs(), draw


def bokeh() -> tuple[str, str]:
    """Return bokeh's script, and what draws the chart with it."""
    from bokeh.embed import json_item
    from bokeh.plotting import figure
    from bokeh.resources import Resources

    chart = figure(width=1200, height=500)
    for name, values in lines():
        chart.line(list(STEPS), values, legend_label=name)
    # Of its scripts the one that draws; tables, widgets and WebGL are others.
    script = Resources("inline", components=["bokeh"]).js_raw[0]
    item = json.dumps(json_item(chart)).replace("</", "<\\/")
    draw = f'await Bokeh.embed.embed_item({item}, "chart");'
    return script, draw + "while (!Bokeh.documents[0].is_idle) await frame();"


def installed(name: str, seen: set[str]) -> float:
    """Return the MB on disk of a distribution and of all it needs that is not in `seen`."""
    name = name.lower().replace("_", "-")
    if name in seen:
        return 0.0
    seen.add(name)
    found = importlib.metadata.distribution(name)
    size = sum(file.locate().stat().st_size for file in found.files or () if file.locate().exists())
    needs = [Requirement(text) for text in found.requires or ()]
    needed = [n.name for n in needs if n.marker is None or n.marker.evaluate({"extra": ""})]
    return size / 1e6 + sum(installed(other, seen) for other in needed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as directory, sync_playwright() as driver:

        def time(name: str, library: str = "", load: str = "", draw: str = "await frame();") -> str:
            path = Path(directory) / f"{name}.html"
            page = PAGE.format(policy=POLICY, nonce=NONCE, library=library, load=load, draw=draw)
            path.write_text(page, encoding="utf-8")
            return opening(driver, path, options.rounds)

        print(f"nothing drawn: {time('nothing')}")
        for name, made in {"plotly": plotly, "bokeh": bokeh}.items():
            if not importlib.util.find_spec(name):
                continue
            script, draw = made()
            script = script.replace("</script", "<\\/script")
            packed = base64.b64encode(zlib.compress(script.encode(), 9)).decode()
            seen: set[str] = set()
            size = installed(name, seen)
            print(f"{name} {importlib.metadata.version(name)}: script {len(script.encode()):,} ")
            print(f"  bytes, compressed and in base64 {len(packed):,}")
            print(f"  installed {size:.0f} MB: {', '.join(sorted(seen))}")
            plain = f'<script nonce="{NONCE}">{script}</script>'
            print(f"  as it is:   {time(f'{name} plain', plain, '', draw)}")
            block = f'<script type="text/plain" id="library">{packed}</script>'
            print(f"  compressed: {time(f'{name} packed', block, DECODED, draw)}")


if __name__ == "__main__":
    main()
