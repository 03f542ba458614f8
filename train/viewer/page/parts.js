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

export function number(x) {
  if (x == null) return "";
  if (Array.isArray(x)) return `[${x.map(number).join(", ")}]`;
  return typeof x === "string" ? x : String(Number(x.toPrecision(4)));
}

export function short(x, most = 24) {
  const text = number(x);
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

export function table(caption, head, rows, rowHeads = true) {
  const cell = (tag, scope) => (value) => el(tag, scope ? { scope } : {}, String(value));
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
  // content built when it is opened, and rebuilt by `refresh` while it is open
  const details = el("details", {}, el("summary", {}, name));
  details.refresh = () => {
    if (details.open) details.replaceChildren(details.firstChild, build());
  };
  details.addEventListener("toggle", details.refresh);
  return details;
}

// viridis at 17 points between 0 and 1
const STOPS = (
  "440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26828e 21918c 1fa088 28ae80 3fbc73 5ec962 84d44b " +
  "addc30 d8e219 fde725"
)
  .split(" ")
  .map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
export const PALETTE = Array.from({ length: 256 }, (_, level) => {
  const place = (level / 255) * (STOPS.length - 1),
    i = Math.min(STOPS.length - 2, Math.floor(place));
  return STOPS[i].map((a, c) => Math.round(a + (STOPS[i + 1][c] - a) * (place - i)));
});
export const color = (value) => `rgb(${PALETTE[Math.round(255 * Math.min(1, Math.max(0, value)))].join(",")})`;

// ---- the server

const UNREACHABLE = "The server does not respond. This page resumes when it is back.";
const RESTARTED = "The server was restarted. Open the address it printed; this page then resumes.";
const CHANGED = "The server now shows another run. Reload this page.";
const banner = () => document.getElementById("banner");
let known = null,
  waiting = null;

export async function start() {
  // what the server shows, or null if it does not respond
  const answer = await reach("api/about");
  known = answer && (await answer.text());
  return known && JSON.parse(known);
}

export async function reach(path, options = {}) {
  // the response, or null after an abort or a failure, which the banner explains
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

// Calls `each` with every line of a response as it arrives and returns the last one. The result may also be {error}, or
// {cancelled} if another request superseded this one.
export async function ask(path, question, each = () => {}, signal = undefined) {
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
    if (part.done) return last;
  }
}
