"""Measure the speed of the page (`serve`) in a real browser: print medians and extremes in milliseconds, as JSON.

    python -m benchmarks.page RUN --sentence "A dog runs ."

`page`: from the request until the complete model is drawn. `flow`: until it shows the values of the first sentence.
`block`: a block of the model that has been fetched is opened, and a frame with its matrices is drawn. `grids`: 144
heads of 30 x 30 are created, and a frame is drawn. `hover`: a row and a column are highlighted in all of these heads,
and a frame is drawn. `first`, `sentence`: from the request to the first tokens, and to the translation with all heads.
`dropped`, `present`, `theme`: in the search tree with all hypotheses, the control is clicked, and a frame is drawn.
The targets are for 2 idle cores; `load` is the load average before the measurement. The browser is NPX_CHROMIUM or a
Chromium on PATH (`pip install "npx-transformer[page,browser]"`).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from typing import Any

AIMS = {"page": 1000, "flow": 1000, "block": 50, "grids": 150, "hover": 50, "first": 300, "sentence": 1000}
AIMS |= (CONTROLS := dict.fromkeys(("dropped", "present", "theme"), 50))
GRIDS_SCRIPT = """async (times) => {
  const { grids } = await import("/heads.js"), [n, layers, heads] = [30, 6, 8];
  const pieces = Array.from({ length: n }, (_, i) => `piece ${i}`);
  const bytes = btoa(String.fromCharCode(...Array.from({ length: layers * heads * n * n }, (_, i) => i * 7 % 256)));
  const summary = Array.from({ length: layers }, () => Array(heads).fill({ confidence: 0.5, entropy: 1, distance: 2 }));
  const grid = { rows: pieces, columns: pieces, layers, heads, bytes, summary };
  const kinds = { encoder: ["a", "b"], decoder: ["a", "b"], cross: ["a", "b"] };
  const shown = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));  // after the next frame
  const timed = async (work) => {
    const from = performance.now();
    work();
    await shown();
    return performance.now() - from;
  };
  const found = { grids: [], hover: [] };
  for (let k = 0; k < times; k++) {
    const place = document.createElement("div");
    document.getElementById("translate").append(place);
    place.scrollIntoView();
    await shown();
    let light;
    found.grids.push(await timed(() => {
      const made = grids({ encoder: grid, decoder: grid, cross: grid }, kinds, [], () => 0);
      place.append(...made.blocks);
      light = made.light;
    }));
    for (let i = 0; i < 6; i++) found.hover.push(await timed(() => light(i % 2 ? "target" : "source", 3 * k + i)));
    place.remove();
  }
  return found;
}"""


BLOCKS_SCRIPT = """async (times) => {
  const blocks = [...document.querySelectorAll("[data-block]")].map((block) => block.dataset.block);
  const panel = "#model .opened", found = [];
  for (let k = 0; k < times; k++) {
    for (const name of blocks) {
      if (document.querySelector(panel).dataset.block === name) continue;
      const from = performance.now();
      document.querySelector(`button[data-block="${name}"]`).click();
      while (document.querySelector(panel).dataset.block !== name) await new Promise((done) => setTimeout(done));
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
      found.push(performance.now() - from);
    }
  }
  return found;
}"""
CONTROL_SCRIPT = """async ([control, times]) => {
  const shown = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const found = [];
  document.documentElement.requestFullscreen = undefined; // it requires a click by a user
  for (let k = 0; k < times; k++) {
    await shown();
    const from = performance.now();
    document.getElementById(control).click();
    await shown();
    found.push(performance.now() - from);
  }
  return found;
}"""


def chromium() -> str | None:
    """Return the path of a Chromium to control, if there is one."""
    names = ("chromium-headless-shell", "chromium", "google-chrome")
    return os.environ.get("NPX_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def measured(tab: Any, address: str, sentence: str, times: int) -> dict[str, list[float]]:
    """Return the milliseconds of each part, measured `times` times; the very first measurement is discarded."""
    milliseconds: dict[str, list[float]] = {name: [] for name in AIMS}
    for _ in range(times + 1):
        tab.goto(address)
        tab.wait_for_selector("body[data-ready]")
        milliseconds["page"].append(float(tab.get_attribute("body", "data-ready")))
        if not tab.locator("#model[data-flow]").count() and not tab.locator("#examples").count():
            tab.fill("#text", sentence)
            tab.press("#text", "Enter")
        tab.wait_for_selector("#model[data-flow]", state="attached", timeout=120_000)
        milliseconds["flow"].append(float(tab.get_attribute("#model", "data-flow")))
    milliseconds["block"] = tab.evaluate(BLOCKS_SCRIPT, times + 1)
    tab.goto("about:blank")
    tab.goto(f"{address}#translate")
    tab.wait_for_selector("body[data-ready]")
    milliseconds |= tab.evaluate(GRIDS_SCRIPT, times + 1)
    for number in range(1, times + 2):
        tab.goto("about:blank")
        tab.goto(f"{address}#translate")
        tab.wait_for_selector("body[data-ready]")
        tab.fill("#text", sentence)
        tab.fill("#length_penalty", f"0.6{number}")  # a search that the server has not cached
        tab.evaluate("document.getElementById('ask').dataset.milliseconds = ''")
        tab.press("#text", "Enter")
        tab.wait_for_selector("#ask[data-milliseconds]:not([data-milliseconds=''])", timeout=120_000)
        milliseconds["sentence"].append(float(tab.get_attribute("#ask", "data-milliseconds")))
        milliseconds["first"].append(float(tab.get_attribute("#ask", "data-first")))
    tab.goto(f"{address}#beam")
    tab.wait_for_selector("#beam svg[data-name]")
    for name in CONTROLS:  # an even number of clicks restores the state of each control
        tab.check("#dropped")
        milliseconds[name] = tab.evaluate(CONTROL_SCRIPT, [name, 2 * times + 2])
    return {name: values[len(values) // (times + 1) :] for name, values in milliseconds.items()}


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="run folder of a translation model")
    parser.add_argument("--sentence", default="three hundred and forty-two", help="sentence to translate")
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    if (path := chromium()) is None:
        sys.exit("benchmarks.page: no Chromium on PATH; try NPX_CHROMIUM=/path/to/chromium")
    command = [sys.executable, "-m", "train", "serve", given.run, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as driver:
        assert server.stdout is not None
        try:
            if not (address := server.stdout.readline().strip()):
                sys.exit(2)  # the server has reported the reason
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = driver.chromium.launch(executable_path=path, args=arguments)
            load = os.getloadavg()[0]
            tab = browser.new_page(viewport={"width": 1200, "height": 900})
            milliseconds = measured(tab, address, given.sentence, given.times)
            summary: dict[str, Any] = {"browser": browser.version, "load": load, "cores": os.cpu_count()}
            for name, values in milliseconds.items():
                rounded = [round(x, 1) for x in (statistics.median(values), min(values), max(values))]
                summary[name] = dict(zip(("median", "min", "max"), rounded, strict=True)) | {"aim": AIMS[name]}
            print(json.dumps(summary, indent=1))
            browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
