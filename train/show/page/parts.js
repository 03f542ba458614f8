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
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {}, el("caption", {}, caption),
      el("thead", {}, el("tr", {}, ...head.map(cell("th", "col")))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((value, i) =>
        cell(i || !rowHeads ? "td" : "th", i || !rowHeads ? null : "row")(value)))))));
}

export function twin(name, made) {  // a table beside a picture, made when it is opened
  const details = el("details", {}, el("summary", {}, name));
  details.addEventListener("toggle", () => { if (details.open) details.replaceChildren(details.firstChild, made()); });
  return details;
}

// viridis at 17 places between 0 and 1
const STOPS = ("440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26828e 21918c 1fa088 28ae80 3fbc73 5ec962 84d44b " +
  "addc30 d8e219 fde725").split(" ").map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
export const PALETTE = Array.from({ length: 256 }, (_, level) => {
  const place = level / 255 * (STOPS.length - 1), i = Math.min(STOPS.length - 2, Math.floor(place));
  return STOPS[i].map((a, c) => Math.round(a + (STOPS[i + 1][c] - a) * (place - i)));
});
export const colour = (share) => `rgb(${PALETTE[Math.round(255 * Math.min(1, Math.max(0, share)))].join(",")})`;

// ---- the server

const banner = () => document.getElementById("banner");
let waiting = false;

export async function reach(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name !== "AbortError") lost("The server does not answer. This page goes on when it is there again.");
    throw error;
  }
  if (answer.status === 403) {
    lost("The server was started anew: open the address that it has printed; this page then goes on.");
    throw new Error("403");
  }
  return answer;
}

function lost(text) {
  banner().textContent = text;
  banner().hidden = false;
  if (waiting) return;
  waiting = setInterval(async () => {
    const answer = await fetch("api/about").catch(() => null);
    if (!answer?.ok) return;
    clearInterval(waiting);
    waiting = false;
    banner().hidden = true;
  }, 1000);
}

export async function get(path) {
  return (await reach(path)).json();
}

// The lines of an answer, told to `each` as they come; the last one is returned. {error} is an answer as well.
export async function ask(path, question, each = () => {}, signal = undefined) {
  const headers = { "Content-Type": "application/json" };
  const answer = await reach(path, { method: "POST", headers, body: JSON.stringify(question), signal });
  if (!answer.ok) return { error: await answer.text() };
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", last = {};
  for (;;) {
    const { value, done } = await reader.read();
    rest += value ?? "";
    const lines = rest.split("\n");
    rest = done ? "" : lines.pop();
    for (const line of lines.filter(Boolean)) each(last = JSON.parse(line));
    if (done) return last;
  }
}
