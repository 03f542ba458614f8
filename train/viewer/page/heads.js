// All heads of each kind as one canvas, a weight a pixel; a row and a column lit in all of them; one head opened.
import { ask, colour, el, PALETTE, table } from "./parts.js";
import { saving } from "./save.js";

const GAP = 1; // pixels to the right of each head and below it
const shades = (alpha) => Uint32Array.from(PALETTE, (rgb) => pixel(...rgb, alpha));
const pixel = (...rgba) => new Uint32Array(Uint8Array.from(rgba).buffer)[0];
const [CLEAR, FAINT, MARK] = [shades(255), shades(64), pixel(255, 92, 51, 255)];

// The heads of an answer: a block for each kind of attention, and what lights piece i of a side ("source", "target") in
// all of them (null: nothing). `open` is told which head was chosen.
export function grids(heads, kinds, off, open) {
  const made = Object.entries(heads).map(([kind, grid]) => ({ kind, ...block(kind, grid, kinds[kind], off, open) }));
  return {
    blocks: made.map(({ place }) => place),
    light: (side, i) =>
      made.forEach(({ kind, light }) => light(...(i === null ? [null, null] : crossing(kind, side, i)))),
  };
}

function crossing(kind, side, i) {
  // the row and the column of a kind that belong to piece i of a side
  if (kind === "cross") return side === "source" ? [null, i] : [i, null];
  if ((kind === "encoder") !== (side === "source")) return [null, null];
  return [i, kind === "decoder" ? i + 1 : i]; // the decoder's first column is the beginning
}

function block(kind, grid, [row, column], off, open) {
  const { layers, heads, rows, columns } = grid,
    [tall, wide] = [rows.length, columns.length];
  const canvas = el("canvas", {
    width: heads * (wide + GAP),
    height: layers * (tall + GAP),
    role: "img",
    "aria-label":
      `${kind}: ${layers} layers of ${heads} heads, each ${tall} by ${wide} weights; ` +
      "a head that is chosen has its numbers in a table",
  });
  const { weight, light } = paint(canvas, kind, grid, off);
  const read = el("p", { class: "read" });
  const buttons = grid.summary.flatMap((layer, l) =>
    layer.map((about, h) => {
      const name = `${kind}.${l}.${h}`,
        switched = off.includes(name);
      return el(
        "button",
        {
          type: "button",
          class: "head",
          "data-head": name,
          tabindex: l || h ? -1 : 0,
          "aria-label": `head ${name}${switched ? ", switched off" : ""}: ${told(about, 2)}`,
          onclick: () => open(kind, l, h),
          onmousemove: (event) => point(event, l, h),
          onmouseleave: () => {
            light(null, null);
            read.textContent = "";
          },
        },
        switched ? "off" : "",
      );
    }),
  );

  function point(event, l, h) {
    // at the weight under the pointer
    const part = (at, size, of) => Math.floor((at / size) * (of + GAP));
    const [i, j] = [
      part(event.offsetY, event.target.offsetHeight, tall),
      part(event.offsetX, event.target.offsetWidth, wide),
    ];
    if (i < 0 || j < 0 || i >= tall || j >= wide) return;
    light(i, j);
    read.textContent = `layer ${l}, head ${h}: ${rows[i]} looks at ${columns[j]} with ${weight(l, h, i, j).toFixed(2)}`;
  }

  const place = el(
    "div",
    {
      class: "grid",
      "data-kind": kind,
      role: "group",
      "aria-label": `heads, ${kind}; arrow keys go from one to the next`,
    },
    el("span"),
    ...Array.from({ length: heads }, (_, h) => el("span", { class: "of" }, `head ${h}`)),
    ...Array.from({ length: layers }, (_, l) => [
      el("span", { class: "of" }, `layer ${l}`),
      ...buttons.slice(l * heads, (l + 1) * heads),
    ]).flat(),
    canvas,
  );
  place.style.setProperty("--heads", heads);
  place.style.setProperty("--end", layers + 2);
  place.style.setProperty("--shape", `${wide + GAP} / ${tall + GAP}`);
  place.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(event.target);
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -heads, ArrowDown: heads }[event.key];
    const next = by && buttons[at + by];
    if (!next) return;
    event.preventDefault();
    buttons[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  return {
    light,
    place: el(
      "div",
      { class: "kind" },
      el("h4", {}, `${kind} `, el("small", {}, `${row} (row), ${column} (column)`)),
      place,
      read,
    ),
  };
}

// Draws all weights of a kind, once plain and once faint; {weight} tells one, {light} shows a row and a column plain and
// the others faint.
function paint(canvas, kind, { bytes, layers, heads, rows, columns }, off) {
  const levels = Uint8Array.from(atob(bytes), (letter) => letter.charCodeAt(0));
  const [tall, wide, across, down] = [rows.length, columns.length, canvas.width, canvas.height];
  const context = canvas.getContext("2d"),
    image = context.createImageData(across, down),
    pixels = new Uint32Array(image.data.buffer);
  const [plain, faint] = [new Uint32Array(pixels.length), new Uint32Array(pixels.length)];
  let from = 0;
  for (let l = 0; l < layers; l++) {
    for (let h = 0; h < heads; h++) {
      const shade = off.includes(`${kind}.${l}.${h}`) ? FAINT : CLEAR;
      for (let i = 0; i < tall; i++, from += wide) {
        const at = (l * (tall + GAP) + i) * across + h * (wide + GAP);
        for (let j = 0; j < wide && (kind !== "decoder" || j <= i); j++) {
          // what is later cannot be looked at, and stays clear
          plain[at + j] = shade[levels[from + j]];
          faint[at + j] = FAINT[levels[from + j]];
        }
      }
    }
  }
  let lit = "";

  function light(row, column) {
    if (lit === (lit = `${row} ${column}`)) return;
    pixels.set(row === null && column === null ? plain : faint);
    for (let y = row ?? down; y < down; y += tall + GAP) {
      pixels.set(plain.subarray(y * across, (y + 1) * across), y * across);
      for (let x = wide; x < across; x += wide + GAP) pixels.fill(MARK, y * across + x, y * across + x + GAP);
    }
    for (let x = column === null || column >= wide ? across : column; x < across; x += wide + GAP) {
      for (let y = 0; y < down; y++) pixels[y * across + x] = y % (tall + GAP) < tall ? plain[y * across + x] : MARK;
    }
    context.putImageData(image, 0, 0);
  }

  light(null, null);
  return { light, weight: (l, h, i, j) => levels[((l * heads + h) * tall + i) * wide + j] / 255 };
}

function told({ confidence, entropy, distance }, digits) {
  const [sure, bits, far] = [confidence, entropy, distance].map((x) => x.toFixed(digits));
  return `greatest weight ${sure} in the mean, entropy ${bits} bits, mean distance ${far} pieces`;
}

// One head of a translation: its numbers as a table, lines between the pieces, and what can be done with it.
export async function opened(place, translation, kind, layer, head, off, switched) {
  const name = (place.dataset.head = `${kind}.${layer}.${head}`);
  const answer = await ask("api/head", { translation, kind, layer, head });
  if (place.dataset.head !== name) return; // another one was chosen since
  if (answer.error) return place.replaceChildren(el("p", { class: "error", role: "alert" }, answer.error));
  const { rows, columns, weights } = answer;
  const lines = drawn(rows, columns, weights, name);
  place.replaceChildren(
    el("h3", { tabindex: -1 }, `Head ${name}`),
    el("p", {}, `In this head: ${told(answer, 4)}.`),
    el(
      "p",
      { class: "row" },
      el(
        "button",
        { type: "button", id: "switch", class: "control", onclick: () => switched(name) },
        off.includes(name) ? "Switch it on again" : "Switch it off, and translate again",
      ),
      saving(name, () => lines),
    ),
    el(
      "p",
      { class: "caution" },
      "A weight says what the head looks at, not that the translation hangs on it: switch it off, and see.",
    ),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Lines" }, lines),
    table(
      `Weights of head ${name}: a row sums to 1`,
      ["", ...columns],
      rows.map((row, i) => [row, ...weights[i].map((w) => w.toFixed(4))]),
    ),
  );
  place.querySelector("h3").focus();
}

function drawn(rows, columns, weights, name) {
  const height = 18 * Math.max(rows.length, columns.length) + 10,
    at = (i) => 16 + 18 * i;
  const svg = el("svg", {
    viewBox: `0 0 420 ${height}`,
    width: 420,
    height,
    role: "img",
    "font-family": "sans-serif",
    "font-size": 12,
    class: "lines",
    "aria-label":
      `Lines of head ${name} from each row to the columns that it looks at; ` + "the table below has the numbers",
  });
  const all = weights
    .flatMap((row, i) => row.map((w, j) => [w, i, j]))
    .filter(([w]) => w >= 0.05)
    .sort((a, b) => b[0] - a[0])
    .slice(0, 1500);
  for (const [w, i, j] of all) {
    svg.append(
      el("line", {
        x1: 150,
        y1: at(i),
        x2: 270,
        y2: at(j),
        stroke: colour(0.45),
        "stroke-width": 1.6,
        "stroke-opacity": Math.min(1, w).toFixed(2),
      }),
    );
  }
  rows.forEach((row, i) => svg.append(el("text", { x: 144, y: at(i) + 4, "text-anchor": "end" }, row)));
  columns.forEach((column, i) => svg.append(el("text", { x: 276, y: at(i) + 4 }, column)));
  return svg;
}
