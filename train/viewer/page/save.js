// Save the current view as one file that works without the server, a drawing as SVG, or a chart as PNG.
//
// A saved view is the page itself with the recorded answers of the server, so it can still be stepped through. A saved
// Model view has all blocks, with the first head of each attention block and the heads that were open.
import { ask, el, reach, recorded, recording } from "./parts.js";

const SHEETS = ["vendor/uPlot.css", "page.css"],
  SCRIPTS = ["vendor/d3-hierarchy.js", "vendor/uPlot.js"];
const MODULES = [
  "parts",
  "matrix",
  "sentence",
  "introduction",
  "figure",
  "model",
  "block",
  "translate",
  "tree",
  "heads",
  "generate",
  "beam",
  "step",
  "curves",
  "present",
  "save",
  "main",
].map((name) => `${name}.js`);
const STYLES = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-opacity",
  "paint-order",
  "font-size",
  "font-family",
  "font-weight",
  "text-anchor",
];
const POLICY = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:";

let sentence = null; // the latest answer, and the one without ablated heads
document.addEventListener("translated", ({ detail: { answer, before } }) => {
  sentence = { answer, before };
  forgetOtherSentences();
});

// Deletes recorded answers about sentences other than the latest one, whose translation is in `sentence`.
function forgetOtherSentences() {
  for (const key of recording.keys()) {
    const translation = key.match(/"translation":"([^"]*)"/)?.[1];
    const isOther = translation && translation !== sentence?.answer.translation;
    if (isOther || key.startsWith("api/translate")) recording.delete(key);
  }
}

export function start(menu, about) {
  const list = menu.querySelector(".menu");
  const visible = () => document.querySelector("main > section:not([hidden])");
  const item = (name, action) =>
    el(
      "button",
      {
        type: "button",
        onclick: async () => {
          menu.open = false;
          menu.firstElementChild.focus();
          await action();
        },
      },
      name,
    );
  menu.addEventListener("toggle", () => {
    if (!menu.open) return;
    const section = visible();
    list.replaceChildren(
      ...(recorded ? [] : [item("This view as a page (HTML)", () => savePage(section.id, about))]),
      ...[...section.querySelectorAll("svg[data-name]")].map((svg) =>
        item(`Drawing ${svg.dataset.name} (SVG)`, () =>
          download(`${svg.dataset.name}.svg`, "image/svg+xml", selfContained(svg)),
        ),
      ),
      ...[...section.querySelectorAll("figure[data-name]")].map((figure) =>
        item(`Chart ${figure.dataset.name} (PNG)`, () =>
          figure.querySelector(".u-wrap canvas").toBlob((blob) => offer(`${figure.dataset.name}.png`, blob)),
        ),
      ),
    );
    list.firstElementChild?.focus();
  });
  menu.addEventListener("keydown", (event) => {
    const buttons = [...list.children],
      by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape" && menu.open) {
      event.preventDefault(); // so that Escape closes only the menu
      menu.open = false;
      menu.firstElementChild.focus();
    } else if (by && menu.open) {
      event.preventDefault();
      buttons.at((buttons.indexOf(document.activeElement) + by) % buttons.length).focus();
    }
  });
  addEventListener("click", (event) => {
    if (!menu.contains(event.target)) menu.open = false;
  });
}

const download = (name, kind, text) => offer(name, new Blob([text], { type: kind }));

function offer(name, blob) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Returns a drawing with the styles from the style sheet and the background of the page.
function selfContained(drawing) {
  const copy = drawing.cloneNode(true),
    parts = copy.querySelectorAll("*");
  drawing.querySelectorAll("*").forEach((part, i) => {
    const style = getComputedStyle(part);
    for (const name of STYLES) parts[i].setAttribute(name, style.getPropertyValue(name));
  });
  const { x, y, width, height } = drawing.viewBox.baseVal;
  copy.prepend(
    el("title", {}, drawing.getAttribute("aria-label")),
    el("rect", { x, y, width, height, fill: getComputedStyle(document.body).backgroundColor }),
  );
  copy.removeAttribute("style");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  return new XMLSerializer().serializeToString(copy);
}

async function savePage(view, about) {
  const read = async (name) => (await reach(name))?.text();
  const [page, styles, scripts, modules] = await Promise.all([
    read(""),
    Promise.all(SHEETS.map(read)),
    Promise.all(SCRIPTS.map(read)),
    Promise.all(MODULES.map(read)),
  ]);
  if ([page, ...styles, ...scripts, ...modules].includes(undefined)) return; // the banner shows the reason
  const saved = new DOMParser().parseFromString(page, "text/html");
  saved.querySelectorAll("link, script, .skip").forEach((part) => part.remove());
  if (view === "model" && sentence) {
    for (const { name } of about.model.blocks)
      await ask("api/block", { translation: sentence.answer.translation, block: name, head: 0 });
  }
  forgetOtherSentences(); // also answers that came late
  const answers = Object.fromEntries(recording);
  const date = new Date().toLocaleString("en", { dateStyle: "long", timeStyle: "short" });
  const data = { view, about, answers, sentence };
  const origin = [
    `Saved on ${date}`,
    about.source && ["model", "translate", "beam"].includes(view) ? `from ${about.source}` : "",
  ];
  const imports = Object.fromEntries(MODULES.map((name, i) => [name, dataUrl(modules[i])]));
  const head = [
    make("meta", { "http-equiv": "content-security-policy", content: POLICY }),
    ...styles.map((text) => make("style", {}, text)),
    make("script", { type: "application/json", id: "recorded" }, escaped(JSON.stringify(data))),
    make("script", { type: "importmap" }, JSON.stringify({ imports })),
  ];
  const body = [
    make("footer", {}, `${origin.filter(Boolean).join(" ")}.`),
    ...scripts.map((text) => make("script", {}, text)),
    make("script", { type: "module" }, 'import "main.js";'),
  ];
  // as text, because this page's policy blocks inline styles
  const html = (element, parts) => element.innerHTML + parts.map((part) => part.outerHTML).join("\n");
  const [headHtml, bodyHtml] = [html(saved.head, head), html(saved.body, body)];
  download(
    `${view}.html`,
    "text/html",
    `<!doctype html>\n<html lang="en"><head>${headHtml}</head><body>${bodyHtml}</body></html>\n`,
  );
}

function make(tag, attributes, text = "") {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

// In a saved page a module is imported by its bare name, which the import map resolves to its text.
function dataUrl(text) {
  const bare = text.replaceAll(/(from|import) "\.\//g, '$1 "');
  return `data:text/javascript;base64,${btoa(String.fromCodePoint(...new TextEncoder().encode(bare)))}`;
}

const escaped = (json) => json.replaceAll("<", "\\u003c");
