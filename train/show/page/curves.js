// Curves: what metrics.jsonl has, followed while the run is trained.
import { el, number, reach, table, twin } from "./parts.js";

const W = 360, H = 220, LEFT = 52, BELOW = 28, TOP = 10;

export function start(section, about) {
  const grid = el("div", { class: "curves" });
  const state = el("p", { role: "status" }, about.run ? "" : "No run was given: npx-transformer serve RUN");
  section.append(state, grid);
  let tag = "", timer = null;

  async function look() {
    const headers = tag ? { "If-None-Match": tag } : {};
    const answer = await reach("api/curves", { headers, cache: "no-store" }).catch(() => null);
    if (answer?.status !== 200) return;
    tag = answer.headers.get("etag") ?? "";
    const { panels, about: names } = await answer.json();
    const last = Math.max(0, ...Object.values(panels).flatMap((kinds) => Object.values(kinds).map((points) => points.at(-1)[0])));
    state.textContent = last ? `${about.run}: up to update ${last.toLocaleString("en")}. New points appear as they are written.` : state.textContent || `${about.run} has no metrics yet.`;
    grid.replaceChildren(...Object.entries(panels).map(([name, kinds]) => panel(names[name], kinds)));
  }

  document.addEventListener("shown", ({ detail }) => {
    clearInterval(timer);
    if (detail !== "curves" || !about.run) return;
    look();
    timer = setInterval(() => { if (!document.hidden) look(); }, 2000);
  });
}

function panel({ title, log }, kinds) {
  const points = Object.values(kinds).flat();
  const scale = log ? Math.log10 : (y) => y;
  const xs = points.map((p) => p[0]), ys = points.map((p) => scale(p[1])).filter(Number.isFinite);
  const [x1, y0, y1] = [Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const x = (v) => LEFT + (W - LEFT - 16) * v / (x1 || 1), y = (v) => TOP + (H - TOP - BELOW) * (1 - (scale(v) - y0) / (y1 - y0 || 1));
  const said = Object.entries(kinds).map(([kind, p]) => `${kind}: ${number(p[0][1])} to ${number(p.at(-1)[1])}`).join("; ");
  const svg = el("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}. ${said}` });
  for (const share of [0, 0.5, 1]) {
    const value = y0 + share * (y1 - y0), at = TOP + (H - TOP - BELOW) * (1 - share);
    svg.append(el("line", { x1: LEFT, x2: W - 16, y1: at, y2: at, class: "rule" }),
      el("text", { x: LEFT - 5, y: at + 4, class: "tick end" }, String(Number((log ? 10 ** value : value).toPrecision(3)))),
      el("text", { x: x(share * x1), y: H - BELOW + 15, class: "tick" }, String(Math.round(share * x1))));
  }
  for (const [kind, p] of Object.entries(kinds)) {
    svg.append(el("polyline", { points: p.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" "), class: `line ${kind}` }));
  }
  return el("figure", {}, el("figcaption", {}, `${title}${log ? ", logarithmic" : ""}`), svg,
    el("p", { class: "legend" }, ...Object.keys(kinds).map((kind) => el("span", { class: kind }, kind === "train" ? "— training " : "- - validation "))),
    twin("As a table", () => table(title, ["update", ...Object.keys(kinds)], rows(kinds))));
}

function rows(kinds) {
  const steps = [...new Set(Object.values(kinds).flat().map((p) => p[0]))].sort((a, b) => a - b);
  const of = Object.values(kinds).map((points) => new Map(points));
  return steps.slice(-200).map((step) => [step, ...of.map((map) => (map.has(step) ? number(map.get(step)) : ""))]);
}
