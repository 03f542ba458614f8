// What the views share: elements, numbers, tables, colours, and talking to the server.
// Text becomes text alone (append, never innerHTML): what a run's vocabulary holds is nobody's code.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "g", "rect", "text", "path", "line", "circle", "polyline", "title"]);

export function el(tag, attributes = {}, ...children) {
  const made = DRAWN.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
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

export function twin(name, made) {
  // a table beside a picture, made when it is opened, and by `renew` while it is open
  const details = el("details", {}, el("summary", {}, name));
  details.renew = () => {
    if (details.open) details.replaceChildren(details.firstChild, made());
  };
  details.addEventListener("toggle", details.renew);
  return details;
}

// viridis at 17 places between 0 and 1
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
export const colour = (share) => `rgb(${PALETTE[Math.round(255 * Math.min(1, Math.max(0, share)))].join(",")})`;

// ---- the server

const GONE = "The server does not answer. This page goes on when it is there again.";
const ANEW = "The server was started anew: open the address that it has printed; this page then goes on.";
const OTHER = "The server shows something else now: reload this page.";
const banner = () => document.getElementById("banner");
let known = null,
  waiting = null;

export async function start() {
  // what the server shows; null where it does not say
  const answer = await reach("api/about");
  known = answer && (await answer.text());
  return known && JSON.parse(known);
}

export async function reach(path, options = {}) {
  // an answer, or null: then the banner says why, or it was aborted
  const answer = await fetch(path, options).catch(() => null);
  if (answer && answer.status !== 403) return answer;
  if (!options.signal?.aborted) lost(answer ? ANEW : GONE);
  return null;
}

function lost(text) {
  banner().textContent = text;
  banner().hidden = false;
  waiting ??= setInterval(async () => {
    const answer = await fetch("api/about").catch(() => null);
    if (!answer?.ok) return lost(answer ? ANEW : GONE);
    if (known !== (await answer.text())) return lost(OTHER);
    clearInterval(waiting);
    waiting = null;
    banner().hidden = true;
  }, 1000);
}

// The lines of an answer, told to `each` as they come; the last one is returned. {error} is an answer as well, and
// {cancelled}: another question has ended this one.
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
      if (!signal?.aborted) lost(GONE);
      return failed();
    }
    rest += part.value ?? "";
    const lines = rest.split("\n");
    rest = part.done ? "" : lines.pop();
    for (const line of lines.filter(Boolean)) each((last = JSON.parse(line)));
    if (part.done) return last;
  }
}
