// Curves: the runs' metrics.jsonl, drawn by uPlot, one color per line, updated while they train.
import { el, number, reach, recorded, recording, table, collapsible, unit } from "./parts.js";

const HUES = ["--forward", "--backward", "--third", "--fourth", "--fifth", "--sixth", "--seventh", "--eighth"];
const PARTS = { train: "training", valid: "validation" };
const height = () => Math.max(260 * unit(), 0.34 * innerHeight);

export function start(section, about) {
  const grid = el("div", { class: "curves" });
  const state = el(
    "p",
    { role: "status" },
    about.runs.length ? "" : "No run was given; start the server with `npx-transformer serve RUN`",
  );
  section.append(
    state,
    el("p", { class: "soft" }, "Drag across a chart to zoom all charts; double-click to reset the zoom."),
    grid,
  );
  const shown = new Map(); // panel -> {figure, show}
  let tag = "",
    timer = null;

  async function refresh() {
    const loaded = recorded ? recorded.answers.curves : await load();
    if (!loaded) return;
    const { error, runs, about: names } = loaded;
    state.textContent =
      error ??
      `${Object.entries(runs)
        .map(([run, panels]) => `${run}: ${upTo(panels)}`)
        .join("; ")}. New points appear as they are written.`;
    for (const name of error ? [] : Object.keys(names)) {
      const lines = Object.entries(runs).flatMap(([run, panels], i) =>
        Object.entries(panels[name] ?? {}).map(([kind, points]) => ({
          run,
          kind,
          points,
          hue: HUES[(2 * i + (kind === "valid" ? 1 : 0)) % HUES.length],
        })),
      );
      if (!lines.length) continue;
      if (!shown.has(name)) {
        shown.set(name, panel(name, names[name]));
        grid.append(shown.get(name).figure);
      }
      shown.get(name).show(lines);
    }
  }

  async function load() {
    const answer = await reach("api/curves", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer?.status !== 200) return null;
    tag = answer.headers.get("etag") ?? "";
    const loaded = await answer.json();
    recording.set("curves", loaded);
    return loaded;
  }

  document.addEventListener("shown", ({ detail }) => {
    clearInterval(timer);
    if (detail !== "curves" || !about.runs.length) return;
    refresh();
    if (!recorded)
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

// Returns one panel. Its function `show` redraws the lines, and preserves the zoom and an open table.
function panel(name, { title, axis, log }) {
  let lines = [],
    plot = null,
    drawnAt = "", // the size of its text
    key = "";
  const place = el("div", { class: "plot", role: "img" });
  const numbers = collapsible("As a table", () =>
    table(title, ["update", ...lines.map(({ run, kind }) => `${run}, ${PARTS[kind]}`)], rows(lines)),
  );
  const heading = `${title}${log ? ", log scale" : ""}`;
  const figure = el("figure", { "data-name": name }, el("figcaption", {}, el("b", {}, heading)), place, numbers);
  const redrawn = el("canvas", { hidden: true }); // follows the color scheme
  redrawn.redraw = () => draw(true);
  figure.append(redrawn);
  const textSize = () => getComputedStyle(place).fontSize;
  new ResizeObserver(() => {
    if (plot && drawnAt !== textSize()) draw(true); // setSize would keep the size of the text
    else plot?.setSize({ width: place.clientWidth, height: height() });
  }).observe(place);

  function draw(anew) {
    const now = lines.map(({ run, kind }) => `${run} ${kind}`).join("\n");
    const updates = [...new Set(lines.flatMap(({ points }) => points.map((p) => p[0])))].sort((a, b) => a - b);
    const data = [updates, ...lines.map(({ points }) => spread(points, updates))];
    if (plot && !anew && now === key) return plot.setData(data, !isZoomed(plot));
    plot?.destroy();
    key = now;
    drawnAt = textSize();
    plot = new uPlot(options(name, axis, log, lines, place), data, place);
  }

  function show(newLines) {
    lines = newLines;
    const description = lines
      .map(({ run, kind, points: p }) => `${run}, ${PARTS[kind]}: ${number(p[0][1])} to ${number(p.at(-1)[1])}`)
      .join("; ");
    place.setAttribute("aria-label", `${title}. ${description}`);
    draw(false);
    numbers.refresh();
  }
  return { figure, show };
}

function spread(points, updates) {
  const at = new Map(points);
  return updates.map((update) => at.get(update) ?? null);
}

function isZoomed({ data: [updates], scales: { x } }) {
  return x.min > updates[0] || x.max < updates.at(-1);
}

function options(name, yLabel, log, lines, place) {
  const style = getComputedStyle(place),
    color = (variable) => {
      const probe = el("span");
      probe.style.color = `var(${variable})`;
      place.append(probe);
      const computed = getComputedStyle(probe).color;
      probe.remove();
      return computed;
    };
  const [ink, line] = [style.color, color("--line")],
    size = parseFloat(style.fontSize);
  const axis = {
    stroke: ink,
    font: `${size}px ${style.fontFamily}`,
    grid: { stroke: line, width: 1 },
    ticks: { stroke: line },
    labelFont: `${size}px ${style.fontFamily}`,
    labelSize: 1.6 * size,
  };
  const short = (value) => (value == null ? "" : number(Number(value.toPrecision(3))));
  // The legend shows the values at the pointer, or the last ones. A line without a point there shows its previous point.
  const latest = (plot, series, at) =>
    plot.data[series].slice(0, at == null ? undefined : at + 1).findLast((x) => x != null);
  const inEnglish = (value) => value.toLocaleString("en");
  const y = { ...axis, label: yLabel, size: 5 * size, space: 2.4 * size, values: (_, values) => values.map(short) };
  const range =
    name === "tokens_per_second" || name === "lr"
      ? (_, least, most) => [0, uPlot.rangeNum(0, most, 0.1, true)[1]]
      : undefined;
  return {
    width: place.clientWidth || 320,
    height: height(),
    cursor: { sync: { key: "updates" }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: log ? { distr: 3 } : range ? { range } : {} },
    padding: [null, 2 * size, null, null], // for the last number of the x axis
    axes: [{ ...axis, label: "update", size: 2.6 * size, space: 5 * size, values: (_, values) => values.map(inEnglish) }, y],
    legend: { live: true },
    series: [
      { label: "update", value: (plot, _, series, at) => latest(plot, series, at).toLocaleString("en") },
      ...lines.map(({ run, kind, hue, points }) => ({
        label: `${run}, ${PARTS[kind]}`,
        stroke: color(hue),
        width: 2 * unit(),
        dash: kind === "valid" ? [8, 5] : undefined,
        spanGaps: true,
        points: { show: points.length < 60 && kind === "valid" ? true : points.length === 1, size: 6 * unit() },
        value: (plot, _, series, at) => short(latest(plot, series, at)),
      })),
    ],
  };
}

function rows(lines) {
  // the last 200 updates
  const steps = [...new Set(lines.flatMap(({ points }) => points.map((p) => p[0])))].sort((a, b) => a - b);
  const values = lines.map(({ points }) => new Map(points));
  return steps.slice(-200).map((step) => [step, ...values.map((value) => number(value.get(step) ?? null))]);
}
