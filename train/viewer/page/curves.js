// Curves: the runs' metrics.jsonl, one color per run, updated while they train.
import { el, number, reach, table, collapsible } from "./parts.js";
import { saving } from "./save.js";

const W = 360,
  H = 222,
  LEFT = 52,
  BELOW = 28,
  TOP = 26,
  LEGEND = 15;
const HUES = ["#4477aa", "#ee6677", "#228833", "#aa7700", "#3399bb", "#aa3377"];
const PARTS = { train: "training", valid: "validation" };

export function start(section, about) {
  const grid = el("div", { class: "curves" });
  const state = el("p", { role: "status" }, about.runs.length ? "" : "No run was given; start with npx-transformer serve RUN");
  section.append(state, grid);
  const shown = new Map(); // panel -> {figure, show}
  let tag = "",
    timer = null;

  async function refresh() {
    const answer = await reach("api/curves", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer?.status !== 200) return;
    tag = answer.headers.get("etag") ?? "";
    const { error, runs, about: names } = await answer.json();
    state.textContent =
      error ??
      `${Object.entries(runs)
        .map(([run, panels]) => `${run}: ${upTo(panels)}`)
        .join("; ")}. New points appear as they are written.`;
    for (const name of error ? [] : Object.keys(names)) {
      const lines = Object.entries(runs).flatMap(([run, panels], i) =>
        Object.entries(panels[name] ?? {}).map(([kind, points]) => ({ run, kind, points, hue: HUES[i % HUES.length] })),
      );
      if (!lines.length) continue;
      if (!shown.has(name)) shown.set(name, panel(name, names[name]));
      shown.get(name).show(lines);
    }
    const figures = Object.keys(names ?? {})
      .filter((name) => shown.has(name))
      .map((name) => shown.get(name).figure);
    if (figures.length !== grid.children.length) grid.replaceChildren(...figures);
  }

  document.addEventListener("shown", ({ detail }) => {
    clearInterval(timer);
    if (detail !== "curves" || !about.runs.length) return;
    refresh();
    timer = setInterval(() => {
      if (!document.hidden) refresh();
    }, 2000);
  });
}

function upTo(panels) {
  const last = Math.max(
    0,
    ...Object.values(panels).flatMap((kinds) => Object.values(kinds).map((points) => points.at(-1)[0])),
  );
  return last ? `update ${last.toLocaleString("en")}` : "no metrics yet";
}

// One panel; `show` redraws its lines and keeps its table open.
function panel(name, { title, log }) {
  let lines = [],
    svg = el("svg");
  const numbers = collapsible("As a table", () =>
    table(title, ["update", ...lines.map(({ run, kind }) => `${run}, ${PARTS[kind]}`)], rows(lines)),
  );
  const figure = el(
    "figure",
    {},
    svg,
    saving(name, () => svg),
    numbers,
  );

  function show(newLines) {
    lines = newLines;
    const fresh = draw(title, log, lines);
    svg.replaceWith(fresh);
    svg = fresh;
    numbers.refresh();
  }
  return { figure, show };
}

function draw(title, log, lines) {
  const points = lines.flatMap((line) => line.points),
    runs = new Map(lines.map(({ run, hue }) => [run, hue]));
  const scale = log ? Math.log10 : (y) => y;
  const xs = points.map((p) => p[0]),
    ys = points.map((p) => scale(p[1])).filter(Number.isFinite);
  const most = (values, start) => values.reduce((a, b) => Math.max(a, b), start);
  const [x1, y0, y1] = [
    most(xs, 0),
    -most(
      ys.map((y) => -y),
      -Infinity,
    ),
    most(ys, -Infinity),
  ];
  const x = (v) => LEFT + ((W - LEFT - 16) * v) / (x1 || 1),
    y = (v) => TOP + (H - TOP - BELOW) * (1 - (scale(v) - y0) / (y1 - y0 || 1));
  const description = lines
    .map(({ run, kind, points: p }) => `${run}, ${PARTS[kind]}: ${number(p[0][1])} to ${number(p.at(-1)[1])}`)
    .join("; ");
  const height = H + LEGEND * (1 + runs.size);
  const svg = el(
    "svg",
    { viewBox: `0 0 ${W} ${height}`, role: "img", "aria-label": `${title}. ${description}` },
    el("text", { x: 4, y: 13 }, `${title}${log ? ", log scale" : ""}`),
  );
  for (const fraction of [0, 0.5, 1]) {
    const value = y0 + fraction * (y1 - y0),
      at = TOP + (H - TOP - BELOW) * (1 - fraction);
    svg.append(
      el("line", { x1: LEFT, x2: W - 16, y1: at, y2: at, class: "rule" }),
      el(
        "text",
        { x: LEFT - 5, y: at + 4, class: "tick end" },
        String(Number((log ? 10 ** value : value).toPrecision(3))),
      ),
      el("text", { x: x(fraction * x1), y: H - BELOW + 15, class: "tick" }, String(Math.round(fraction * x1))),
    );
  }
  for (const { kind, points: p, hue } of lines) {
    const places = p.filter(([, b]) => Number.isFinite(scale(b))).map(([a, b]) => [x(a).toFixed(1), y(b).toFixed(1)]);
    svg.append(el("polyline", { points: places.join(" "), class: `line ${kind}`, stroke: hue }));
    if (kind === "valid" && places.length < 60)
      svg.append(...places.map(([cx, cy]) => el("circle", { cx, cy, r: 2, fill: hue })));
  }
  const kinds = [...new Set(lines.map(({ kind }) => kind))];
  svg.append(
    el(
      "text",
      { x: (LEFT + W) / 2, y: H + 8, class: "tick" },
      `updates; ${kinds.map((kind) => `${kind === "valid" ? "dashed" : "solid"}: ${PARTS[kind]}`).join(", ")}`,
    ),
  );
  [...runs].forEach(([run, hue], i) => {
    const at = H + LEGEND * (i + 1) + 6;
    svg.append(
      el("line", { x1: LEFT, x2: LEFT + 24, y1: at, y2: at, class: "line", stroke: hue }),
      el("text", { x: LEFT + 30, y: at + 4, class: "name" }, run),
    );
  });
  return svg;
}

function rows(lines) {
  // the last 200 updates
  const steps = [...new Set(lines.flatMap(({ points }) => points.map((p) => p[0])))].sort((a, b) => a - b);
  const of = lines.map(({ points }) => new Map(points));
  return steps.slice(-200).map((step) => [step, ...of.map((map) => (map.has(step) ? number(map.get(step)) : ""))]);
}
