// Curves: the runs' metrics.jsonl, drawn by uPlot, one color per line, updated while they train.
import { el, number, reach, recorded, recording, repaint, table, theme, collapsible, unit } from "./parts.js";

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
    drawnAt = "", // size of the text when it was drawn
    key = "";
  const place = el("div", { class: "plot", role: "img" });
  const numbers = collapsible("As a table", () =>
    table(title, ["update", ...lines.map(({ run, kind }) => `${run}, ${PARTS[kind]}`)], rows(lines)),
  );
  const heading = `${title}${log ? ", log scale" : ""}`;
  const figure = el("figure", { "data-name": name }, el("figcaption", {}, el("b", {}, heading)), place, numbers);
  place.redraw = () => {
    const style = place.measured;
    if (plot && drawnAt !== style.letter) draw(style); // setSize does not change the size of the text
    else plot?.setSize({ width: style.width, height: height() });
  };
  sizes.observe(place);

  // Draws the lines; with a style, also the axes.
  function draw(style = null) {
    const now = lines.map(({ run, kind }) => `${run} ${kind}`).join("\n");
    const updates = [...new Set(lines.flatMap(({ points }) => points.map((p) => p[0])))].sort((a, b) => a - b);
    const data = [updates, ...lines.map(({ points }) => spread(points, updates))];
    if (plot && !style && now === key) return plot.setData(data, !isZoomed(plot));
    style ??= styleOf(place);
    plot?.destroy();
    key = now;
    drawnAt = style.letter;
    plot = new uPlot(options(name, axis, log, lines, style), data, place);
    plot.ctx.canvas.redraw = () => plot.redraw(false); // follows the color scheme
  }

  function show(newLines) {
    lines = newLines;
    const description = lines
      .map(({ run, kind, points: p }) => `${run}, ${PARTS[kind]}: ${number(p[0][1])} to ${number(p.at(-1)[1])}`)
      .join("; ");
    place.setAttribute("aria-label", `${title}. ${description}`);
    draw();
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

const styleOf = (place) => {
  const { fontSize, fontFamily } = getComputedStyle(place);
  return { letter: fontSize, font: `${fontSize} ${fontFamily}`, width: place.clientWidth || 320 };
};
// The styles of all charts are read before one is drawn, so that the browser lays out the page only once.
const sizes = new ResizeObserver((entries) => {
  const places = entries.map(({ target }) => target);
  places.forEach((place) => (place.measured = styleOf(place)));
  repaint(places);
});

// Returns a function that returns the color of a variable of the style sheet in the current theme.
const computed = new Map(); // saves readings, each of which makes the browser update all styles
const color = (variable) => () => {
  const key = `${theme()} ${variable}`;
  if (!computed.has(key)) {
    const probe = el("span");
    probe.style.color = `var(${variable})`;
    document.body.append(probe);
    computed.set(key, getComputedStyle(probe).color);
    probe.remove();
  }
  return computed.get(key);
};

function options(name, yLabel, log, lines, { letter, font, width }) {
  const line = color("--line"),
    size = parseFloat(letter);
  const axis = {
    stroke: color("--ink"),
    font,
    grid: { stroke: line, width: 1 },
    ticks: { stroke: line },
    labelFont: font,
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
    width,
    height: height(),
    cursor: { sync: { key: "updates" }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: log ? { distr: 3 } : range ? { range } : {} },
    padding: [null, 2 * size, null, null], // for the last number of the x axis
    axes: [{ ...axis, label: "update", size: 2.6 * size, space: 5 * size, values: (_, values) => values.map(inEnglish) }, y],
    legend: { live: true, markers: { stroke: (_, series) => `var(${lines[series - 1].hue})` } },
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
