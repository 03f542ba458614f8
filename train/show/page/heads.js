// All heads as small canvases, one weight a pixel; a row and a column lit in all of them at once; one head opened.
import { ask, colour, el, PALETTE, table } from "./parts.js";
import { download } from "./save.js";

// The grids of an answer, one for each kind of attention. `open` is told which head was chosen.
export function grids(heads, kinds, off, open) {
  const blocks = Object.entries(heads).map(([kind, grid]) => {
    const bytes = Uint8Array.from(atob(grid.bytes), (letter) => letter.charCodeAt(0));
    const [rows, columns] = [grid.rows.length, grid.columns.length];
    const made = [];
    for (let layer = 0; layer < grid.layers; layer++) {
      for (let head = 0; head < grid.heads; head++) {
        const from = (layer * grid.heads + head) * rows * columns, about = grid.summary[layer][head];
        const name = `${kind}.${layer}.${head}`, switched = off.includes(name);
        const canvas = el("canvas", { width: columns, height: rows, role: "img", "aria-label":
          `${kind}, layer ${layer}, head ${head}${switched ? ", switched off" : ""}: ${rows} by ${columns} weights, greatest ${about.confidence.toFixed(2)} in the mean` });
        paint(canvas, bytes.subarray(from, from + rows * columns), kind === "decoder");
        made.push(el("button", { type: "button", class: `head${switched ? " off" : ""}`, "data-head": name, tabindex: made.length ? -1 : 0,
          title: `layer ${layer}, head ${head}: greatest ${about.confidence.toFixed(2)}, entropy ${about.entropy.toFixed(2)} bits, distance ${about.distance.toFixed(1)}`,
          onclick: () => open(kind, layer, head, name) }, canvas, el("span", {}, `${layer}.${head}${switched ? " off" : ""}`)));
      }
    }
    const block = el("div", { class: "grid", "data-kind": kind, role: "group", "aria-label": `heads, ${kind}; arrow keys go from one to the next` }, ...made);
    block.style.setProperty("--heads", grid.heads);
    block.style.setProperty("--shape", `${columns} / ${rows}`);
    block.addEventListener("keydown", (event) => {
      const at = made.indexOf(event.target);
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid.heads, ArrowDown: grid.heads }[event.key];
      const next = by && made[at + by];
      if (!next) return;
      event.preventDefault();
      made[at].tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
    return el("div", { class: "kind" }, el("h4", {}, `${kind} `, el("small", {}, `${kinds[kind][0]} (row), ${kinds[kind][1]} (column)`)), block);
  });
  return blocks;
}

const PIXELS = Uint32Array.from(PALETTE, (rgb) => new Uint32Array(Uint8Array.of(...rgb, 255).buffer)[0]);

function paint(canvas, levels, causal) {  // what is later than its row cannot be looked at, and stays clear
  const context = canvas.getContext("2d"), wide = canvas.width, image = context.createImageData(wide, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < levels.length; i++) if (!causal || i % wide <= i / wide) pixels[i] = PIXELS[levels[i]];
  context.putImageData(image, 0, 0);
}

// Lights piece i of a side ("source", "target") in every head of `place`; null: nothing.
export function light(place, side, i) {
  for (const block of place.querySelectorAll(".grid")) {
    const kind = block.dataset.kind, source = side === "source";
    const row = kind === "encoder" ? (source ? i : null) : source ? null : i;
    const column = kind === "decoder" ? (source || i === null ? null : i + 1) : source ? i : null;
    const [first, canvas, heads] = [block.firstChild, block.querySelector("canvas"), Number(block.style.getPropertyValue("--heads"))];
    const [wide, tall] = [canvas.offsetWidth, canvas.offsetHeight];
    const across = heads > 1 ? first.nextSibling.offsetLeft - first.offsetLeft : wide;
    const down = block.children[heads] ? block.children[heads].offsetTop - first.offsetTop : tall + 1;
    bar(block, "row", row, canvas.height, tall, down);
    bar(block, "column", column !== null && column < canvas.width ? column : null, canvas.width, wide, across);
  }
}

// One bar for each head at once: it is repeated at the distance from one to the next.
function bar(block, name, i, of, size, step) {
  block.classList.toggle(`${name}-lit`, i !== null);
  for (const [key, value] of Object.entries(i === null ? {} : { from: 1 + i * size / of, to: 1 + (i + 1) * size / of, step })) {
    block.style.setProperty(`--${name}-${key}`, `${value.toFixed(2)}px`);
  }
}

// One head: its numbers as a table, lines between the pieces, and what can be done with it.
export async function opened(place, kind, layer, head, off, switched) {
  const answer = await ask("api/head", { kind, layer, head });
  if (answer.error) return place.replaceChildren(el("p", { class: "error", role: "alert" }, answer.error));
  const { rows, columns, weights } = answer, name = `${kind}.${layer}.${head}`;
  const lines = drawn(rows, columns, weights, name);
  place.replaceChildren(
    el("h3", { tabindex: -1 }, `Head ${name}`),
    el("p", {}, `Greatest weight ${answer.confidence.toFixed(4)} in the mean, entropy ${answer.entropy.toFixed(4)} bits, mean distance ${answer.distance.toFixed(4)} pieces.`),
    el("p", { class: "row" },
      el("button", { type: "button", id: "switch", onclick: () => switched(name) }, off.includes(name) ? "Switch it on again" : "Switch it off, and translate again"),
      el("button", { type: "button", onclick: () => download(`${name}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(lines)) }, "Save as SVG")),
    el("p", { class: "caution" }, "A weight says what the head looks at, not that the translation hangs on it: switch it off, and see."),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Lines" }, lines),
    table(`Weights of head ${name}: a row sums to 1`, ["", ...columns], rows.map((row, i) => [row, ...weights[i].map((w) => w.toFixed(4))])));
  place.querySelector("h3").focus();
}

function drawn(rows, columns, weights, name) {
  const height = 18 * Math.max(rows.length, columns.length) + 10, at = (i) => 16 + 18 * i;
  const svg = el("svg", { viewBox: `0 0 420 ${height}`, width: 420, height, role: "img", "font-family": "sans-serif", "font-size": 12, class: "lines",
    "aria-label": `Lines of head ${name} from each row to the columns that it looks at; the table below has the numbers` });
  const all = weights.flatMap((row, i) => row.map((w, j) => [w, i, j])).filter(([w]) => w >= 0.05).sort((a, b) => b[0] - a[0]).slice(0, 1500);
  for (const [w, i, j] of all) {
    svg.append(el("line", { x1: 150, y1: at(i), x2: 270, y2: at(j), stroke: colour(0.25), "stroke-width": 1.6, "stroke-opacity": Math.min(1, w).toFixed(2) }));
  }
  rows.forEach((row, i) => svg.append(el("text", { x: 144, y: at(i) + 4, "text-anchor": "end" }, row)));
  columns.forEach((column, i) => svg.append(el("text", { x: 276, y: at(i) + 4 }, column)));
  return svg;
}
