// Shared by all views: elements, numbers, tables, colors and requests to the server.
// Text is only ever appended as text, never as innerHTML, because a run's vocabulary is untrusted.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "rect", "text", "path", "line", "circle", "polyline", "title"]);

export function el(tag, attributes = {}, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Returns whether a task searches its output token by token; other models read a text in one pass.
export const searches = (task) => task === "translation" || task === "tree";

export const isPresenting = () => "presenting" in document.documentElement.dataset; // present.js
// Returns the scale of drawings: the number of CSS pixels per pixel of a window of usual width; larger on large screens.
export const unit = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;

export function number(x) {
  if (x == null) return "";
  if (Array.isArray(x)) return `[${x.map(number).join(", ")}]`;
  if (typeof x === "string") return NONFINITE[x] ?? x;
  if (Math.abs(x) === Infinity) return x > 0 ? "∞" : "−∞";
  const text = x !== 0 && Math.abs(x) < 1e-3 ? x.toExponential(3).replace(/\.?0*e/, "e") : Number(x.toPrecision(4));
  return minus(text);
}

const NONFINITE = { inf: "∞", "-inf": "−∞" }; // as step.py writes them
export const minus = (x) => String(x).replaceAll("-", "−"); // one minus sign everywhere
export const fixed = (x, digits = 4) => minus(x.toFixed(digits));

// Returns the nodes of a text in which _x is a subscript and ^x a superscript, as in explanations.py.
export const typeset = (text) =>
  text.split(/([_^](?:\([^)]*\)|[A-Za-z0-9]+))/).map((part, i) => {
    if (i % 2 === 0) return part;
    return el(part[0] === "_" ? "sub" : "sup", {}, part.slice(1).replace(/^\((.*)\)$/, "$1"));
  });
// Returns lines of equations. Two spaces separate equations; if possible, a line breaks only between equations.
export const formula = (lines) => {
  const equations = (line) => line.split("  ").flatMap((one) => [el("span", {}, ...typeset(one)), " "]);
  return el("div", { class: "formula" }, ...lines.map((line) => el("p", {}, ...equations(line))));
};

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
export const rounded = (n) => compact.format(n); // 44,800 is 44.8K

export function short(x, most = 24) {
  const text = number(x);
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

// Values that survive a reload: the theme in localStorage, and the sentence in sessionStorage, which ends with the tab.
// A browser may refuse access to both.
export function remember(storage, name, value) {
  try {
    storage().setItem(name, JSON.stringify(value));
  } catch {
    // the page works without them
  }
}

export function recall(storage, name) {
  try {
    return JSON.parse(storage().getItem(name));
  } catch {
    return null;
  }
}

export function table(caption, head, rows, rowHeads = true) {
  const cell = (tag, scope) => (value) =>
    el(tag, scope ? { scope } : {}, typeof value === "number" ? minus(value) : String(value));
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, ...head.map(cell("th", "col")))),
      el(
        "tbody",
        {},
        ...rows.map((row) =>
          el(
            "tr",
            {},
            ...row.map((value, i) => cell(i || !rowHeads ? "td" : "th", i || !rowHeads ? null : "row")(value)),
          ),
        ),
      ),
    ),
  );
}

export function collapsible(name, build) {
  // the content is built when it is opened; `refresh` builds it again while it is open
  const content = el("div"), // separate from the summary, which keeps the focus
    details = el("details", {}, el("summary", {}, name), content);
  details.refresh = () => {
    if (details.open) content.replaceChildren(build());
  };
  details.addEventListener("toggle", details.refresh);
  return details;
}

// ---- one color scale for all matrices: purple is negative, green is positive, and 0 is the background (ColorBrewer's
// PRGn, which color-blind readers can tell apart). Attention weights use its positive half.

const LIGHT = "762a83 9970ab c2a5cf e7d4e8 f7f8fa d9f0d3 a6dba0 5aae61 1b7837";
const DARK = "e3b5ff ab76cc 714690 432c54 1d232a 1e4229 2e6e3f 4aa65d 98eaa3";
const rgb = (hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
const levels = (stops) => {
  const colors = stops.split(" ").map(rgb);
  return Array.from({ length: 255 }, (_, level) => {
    const place = (level / 254) * (colors.length - 1),
      i = Math.min(colors.length - 2, Math.floor(place));
    return colors[i].map((a, c) => Math.round(a + (colors[i + 1][c] - a) * (place - i)));
  });
};
const SCALES = { light: levels(LIGHT), dark: levels(DARK) };
const pack = (colors) => Uint32Array.from(colors, (color) => new Uint32Array(Uint8Array.of(...color, 255).buffer)[0]);
const PIXELS = { light: pack(SCALES.light), dark: pack(SCALES.dark) };
const canvases = () => [...document.querySelectorAll("canvas")].filter(({ redraw }) => redraw);
const later = new IntersectionObserver(
  (entries) =>
    entries
      .filter(({ isIntersecting }) => isIntersecting)
      .forEach(({ target }) => {
        later.unobserve(target);
        target.redraw();
      }),
  { rootMargin: "50%" },
);
// Calls the method `redraw` of canvases or charts: at once for those in the window, and for the others when they come
// near the window.
export function repaint(all) {
  const inWindow = all.map((one) => {
    const { top, bottom } = one.getBoundingClientRect();
    return top < innerHeight && bottom > 0;
  });
  all.forEach((one, i) => (inWindow[i] ? one.redraw() : later.observe(one)));
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");

const isTheme = (name) => name === "light" || name === "dark";
const stored = recall(() => localStorage, "theme");
if (isTheme(stored)) document.documentElement.dataset.theme = stored;
const chosen = () => document.documentElement.dataset.theme ?? (prefersDark.matches ? "dark" : "light");
let current = chosen(); // stored, because reading `matches` makes the browser update all styles
export const theme = () => current;
export const scale = () => SCALES[theme()]; // 255 colors for -1 to 1
export const pixelScale = () => PIXELS[theme()]; // the same as pixels of an ImageData
// Masked cells have diagonal lines of the first color on the second, a blue that the scale does not have.
// The lines are faint in both themes, so that they do not stand out among the weights.
const MASKED = { light: ["c3cede", "e8edf5"], dark: ["2a3340", "151a22"] };
export const maskedColors = () => MASKED[theme()].map((hex) => `#${hex}`);
// Returns black or white, whichever has more contrast with a color (WCAG 2).
export const inkOn = (color) => {
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = color.map((c) => linear(c / 255));
  return (0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05) ** 2 > 1.05 * 0.05 ? "#000" : "#fff";
};
export const level = (value, most) => 127 + Math.round(127 * Math.min(1, Math.max(-1, value / (most || 1))));

export function setTheme(name) {
  document.documentElement.dataset.theme = current = name;
  remember(() => localStorage, "theme", name);
  recolor();
}
// Legends use --scale and --masked.
function recolor() {
  const colors = (theme() === "dark" ? DARK : LIGHT).split(" ").map((hex) => `#${hex}`);
  const { style } = document.documentElement,
    [line, between] = maskedColors();
  style.setProperty("--scale", `linear-gradient(90deg, ${colors.join(", ")})`);
  style.setProperty("--masked", `repeating-linear-gradient(135deg, ${line} 0 2px, ${between} 2px 5px)`);
  repaint(canvases());
}
prefersDark.addEventListener("change", () => {
  current = chosen();
  recolor();
});
// Printing also shows canvases outside the window.
addEventListener("beforeprint", () => canvases().forEach((canvas) => canvas.redraw()));
recolor();

export function bytes(base64) {
  const text = atob(base64),
    decoded = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) decoded[i] = text.charCodeAt(i);
  return decoded;
}

// While a section is shown, calls `go` with -1, 1, -Infinity or Infinity for the arrow keys, Home and End, unless the
// focus is in a field, a matrix or an area that scrolls.
export function stepByKeys(section, go) {
  document.addEventListener("keydown", (event) => {
    if (section.hidden || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.target.matches("input:not([type=checkbox]), select, textarea, canvas[tabindex], .scroll, .scroll *")) return;
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    go(by);
  });
}

// Makes the arrow keys, Home and End move the focus between the buttons of a group, which is arranged in rows of `across`
// buttons. The focus does not leave the group.
// Tab reaches only one of the buttons.
export function moveByKeys(group, buttons, across) {
  group.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(event.target),
      by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[event.key],
      end = { Home: buttons[0], End: buttons.at(-1) }[event.key];
    if (!(by || end) || at < 0) return;
    event.preventDefault();
    const isOut = Math.abs(by) === 1 && Math.floor(at / across) !== Math.floor((at + by) / across);
    const next = end ?? (isOut ? null : buttons[at + by]);
    if (!next) return;
    buttons[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}

// ---- the server

const UNREACHABLE = "The server does not respond. This page resumes when the server is back.";
const STOPPED = "The server stopped before it answered.";
const RESTARTED = "The server was restarted. Open the address that it printed; this page then resumes.";
const CHANGED = "The server now shows another run. Reload this page.";
const banner = () => document.getElementById("banner");
export const isInBanner = (text) => !banner().hidden && banner().textContent === text;
let known = null,
  waiting = null;

// The answers of the server by question; for sentences, only the latest ones. A saved page, which has no server, contains
// them in #recorded (save.js).
export const recording = new Map();
const saved = document.getElementById("recorded");
export const recorded = saved && JSON.parse(saved.textContent);
const NOT_SAVED = "A saved page has no server; it contains only what was open when it was saved.";

export async function start() {
  // returns what the server shows, or null if it does not respond
  if (recorded) return recorded.about;
  const answer = await reach("api/about");
  known = answer && (await answer.text());
  return known && JSON.parse(known);
}

export async function reach(path, options = {}) {
  // the response, or null after an abort or a failure, which the banner explains
  if (recorded) return null;
  const answer = await fetch(path, options).catch(() => null);
  if (answer && answer.status !== 403) return answer;
  if (!options.signal?.aborted) lost(answer ? RESTARTED : UNREACHABLE);
  return null;
}

function lost(text) {
  banner().textContent = text;
  banner().hidden = false;
  waiting ??= setInterval(async () => {
    const answer = await fetch("api/about").catch(() => null);
    if (!answer?.ok) return lost(answer ? RESTARTED : UNREACHABLE);
    if (known !== (await answer.text())) return lost(CHANGED);
    clearInterval(waiting);
    waiting = null;
    banner().hidden = true;
  }, 1000);
}

const keyOf = (path, question) => `${path} ${JSON.stringify(question)}`;
export const isAnswerable = (path, question) => !recorded || keyOf(path, question) in recorded.answers;

// Calls `each` with every line of a response as it arrives and returns the last one. The result may also be {error}, or
// {cancelled} after an abort.
export async function ask(path, question, each = () => {}, signal = undefined) {
  const key = keyOf(path, question);
  if (recorded) return recorded.answers[key] ?? { error: NOT_SAVED };
  const headers = { "Content-Type": "application/json" };
  const answer = await reach(path, { method: "POST", headers, body: JSON.stringify(question), signal });
  const failed = () => (signal?.aborted ? { cancelled: true } : { error: banner().textContent });
  if (!answer) return failed();
  if (!answer.ok) return { error: await answer.text() };
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "",
    last = {};
  for (;;) {
    const part = await reader.read().catch(() => null);
    if (!part) {
      if (!signal?.aborted) lost(UNREACHABLE);
      return failed();
    }
    rest += part.value ?? "";
    const lines = rest.split("\n");
    rest = part.done ? "" : lines.pop();
    for (const line of lines.filter(Boolean)) each((last = JSON.parse(line)));
    if (part.done) {
      if (last.cancelled) return { error: STOPPED };
      if (!last.error) recording.set(key, last);
      return last;
    }
  }
}
