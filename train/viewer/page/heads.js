// All heads of a kind on one canvas, one pixel per weight; highlights a row and column in every head; opens one head.
import {
  ask,
  bytes as decode,
  collapsible,
  el,
  moveByKeys,
  recorded,
  scale,
  table,
  unit,
} from "./parts.js";
import { hatching, matrix } from "./matrix.js";

const GAP = 1; // pixels between heads
const TITLES = {
  cross: "Cross-attention",
  encoder: "Encoder self-attention",
  decoder: "Decoder self-attention",
  text: "Self-attention",
};
const pixel = (...rgba) => new Uint32Array(Uint8Array.from(rgba).buffer)[0];
// the colors of weights 0 to 1 in 256 levels: the positive half of the scale of all matrices
const shades = (alpha) =>
  Uint32Array.from({ length: 256 }, (_, i) => pixel(...scale()[127 + Math.round(i * (127 / 255))], alpha));

// Returns the heads of an answer: one block per kind of attention, and a function that highlights token i (null: none) of
// the side "source" or "target" in all blocks. `open` is called with the name of a selected head, such as "cross.0.3".
export function grids(heads, kinds, off, open) {
  const shown = Object.entries(heads).sort(([a], [b]) => (b === "cross") - (a === "cross")); // cross-attention first
  const grids = shown.map(([kind, grid]) => ({ kind, ...block(kind, grid, kinds[kind], off, open) }));
  return {
    blocks: grids.map(({ place }) => place),
    light: (side, i) =>
      grids.forEach(({ kind, light }) => light(...(i === null ? [null, null] : crossing(kind, side, i)))),
  };
}

function crossing(kind, side, i) {
  // returns the row and column of this kind that belong to token i of a side
  if (kind === "text") return side === "source" ? [i, i] : [i, null];
  if (kind === "cross") return side === "source" ? [null, i] : [i, null];
  if ((kind === "encoder") !== (side === "source")) return [null, null];
  return [i, kind === "decoder" ? i + 1 : i]; // the decoder's first column is the beginning of sentence
}

function block(kind, grid, [row, column], off, open) {
  const { layers, heads, rows, columns, masked } = grid,
    [tall, wide] = [rows.length, columns.length];
  const canvas = el("canvas", {
    width: heads * (wide + GAP),
    height: layers * (tall + GAP),
    role: "img",
    "aria-label":
      `${kind}: ${layers} layers of ${heads} heads, each ${tall} by ${wide} weights; ` +
      "select a head to see its numbers in a table",
  });
  const { weight, isMasked, light } = paint(canvas, kind, grid, off);
  const read = el("p", { class: "read" });
  const buttons = grid.summary.flatMap((layer, l) =>
    layer.map((about, h) => {
      const name = `${kind}.${l}.${h}`,
        ablated = off.includes(name);
      return el(
        "button",
        {
          type: "button",
          class: "head",
          "data-head": name,
          tabindex: l || h ? -1 : 0,
          "aria-label": `head ${name}${ablated ? ", ablated" : ""}: ${describe(about, kind)}`,
          onclick: () => open(name),
          onmousemove: (event) => point(event, l, h),
          onmouseleave: () => {
            light(null, null);
            read.textContent = "";
          },
        },
        ablated ? "off" : "",
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
    const value = isMasked(i, j) ? "0 (masked)" : weight(l, h, i, j).toFixed(2);
    read.textContent = `layer ${l}, head ${h}: ${rows[i]} attends to ${columns[j]} with weight ${value}`;
  }

  const place = el(
    "div",
    {
      class: "grid",
      "data-kind": kind,
      role: "group",
      "aria-label": `${kind} heads; use the arrow keys to move between them`,
    },
    el("span"),
    ...Array.from({ length: heads }, (_, h) =>
      el("span", { class: "of top" }, `head ${h}`, el("span", { class: "names columns" })),
    ),
    ...Array.from({ length: layers }, (_, l) => [
      el("span", { class: "of side" }, el("span", { class: "layer-name" }, `layer ${l}`), el("span", { class: "names rows" })),
      ...buttons.slice(l * heads, (l + 1) * heads),
    ]).flat(),
    ...(masked ? [hatched(grid, decode(masked))] : []),
    canvas,
  );
  place.style.setProperty("--heads", heads);
  place.style.setProperty("--end", layers + 2);
  place.style.setProperty("--shape", `${wide + GAP} / ${tall + GAP}`);
  place.style.setProperty("--wide", wide + GAP);
  place.style.setProperty("--tall", tall + GAP);
  new ResizeObserver(() => nameTokens(place, heads, rows, columns)).observe(place);
  moveByKeys(place, buttons, heads);
  return {
    light,
    place: el(
      "div",
      { class: "kind" },
      el(
        "h4",
        {},
        `${TITLES[kind]} `,
        el("small", {}, `${row} (row), ${column} (column)`),
      ),
      place,
      read,
    ),
  };
}

// Labels the rows and columns of the heads with their tokens, if a cell is then still as high as a letter. The first kind
// gets a separate row if there is otherwise no room for these labels. The widths are those of .heads and .grid in page.css.
function nameTokens(place, heads, rows, columns) {
  const kind = place.parentElement,
    all = kind.parentElement,
    rem = 16 * unit(),
    [names, least, most] = [6.5, 4, 12].map((width) => width * rem), // width of the names; minimum and maximum width of a head
    gap = 2 * rem;
  const letter = parseFloat(getComputedStyle(place.querySelector(".names")).fontSize),
    hasRoom = (width) => (Math.min(width - names, most * heads) / heads / (columns.length + GAP)) >= 1.3 * letter;
  const across = Math.floor((all.clientWidth + gap) / (names + least * heads + gap)),
    n = Math.max(1, Math.min(all.childElementCount, across)),
    fits = hasRoom((all.clientWidth - (n - 1) * gap) / n),
    isWide = !fits && kind === all.firstElementChild && hasRoom(all.clientWidth),
    isNamed = fits || isWide;
  kind.classList.toggle("wide", isWide);
  // if a row is too low for the upright name of its layer, it gets a short name
  const isFlat = place.querySelector(".side").clientHeight < 4 * letter;
  place.classList.toggle("flat", isFlat);
  place.querySelectorAll(".layer-name").forEach((one, l) => (one.textContent = isFlat ? `L${l}` : `layer ${l}`));
  if (place.classList.contains("named") === isNamed) return;
  place.classList.toggle("named", isNamed);
  for (const [side, labels] of Object.entries({ rows, columns }))
    for (const tokens of place.querySelectorAll(`.${side}`))
      tokens.replaceChildren(...(isNamed ? labels.map((label) => el("span", {}, label)) : []));
}

// Returns a canvas behind the weights, in the resolution of the screen, in which masked areas are hatched.
function hatched({ layers, heads, rows, columns }, hidden) {
  const [tall, wide] = [rows.length, columns.length];
  const canvas = el("canvas", { class: "hatched", "aria-hidden": "true" });
  canvas.redraw = () => {
    if (!canvas.clientWidth) return; // not visible
    const ratio = devicePixelRatio || 1;
    [canvas.width, canvas.height] = [canvas.clientWidth * ratio, canvas.clientHeight * ratio].map(Math.round);
    const context = canvas.getContext("2d"),
      [x, y] = [canvas.width / (heads * (wide + GAP)), canvas.height / (layers * (tall + GAP))];
    context.fillStyle = hatching(context, Math.round(6 * ratio * unit()));
    for (let i = 0; i < tall; i++) {
      for (let j = 0, first; (first = j) < wide; j++) {
        while (j < wide && hidden[i * wide + j]) j++;
        if (j === first) continue;
        for (let l = 0; l < layers; l++)
          for (let h = 0; h < heads; h++) {
            const [left, top] = [h * (wide + GAP) + first, l * (tall + GAP) + i];
            context.fillRect(left * x, top * y, (j - first) * x, y);
          }
      }
    }
  };
  new ResizeObserver(() => canvas.redraw()).observe(canvas);
  return canvas;
}

// Draws all weights of a kind twice, plain and faint. The function `weight` returns one weight; `light` shows one row and
// column plain and the rest faint.
function paint(canvas, kind, { bytes, layers, heads, rows, columns, masked }, off) {
  const levels = decode(bytes),
    hidden = masked ? decode(masked) : null;
  const [tall, wide, across, down] = [rows.length, columns.length, canvas.width, canvas.height];
  const context = canvas.getContext("2d"),
    image = context.createImageData(across, down), // masked weights stay transparent
    pixels = new Uint32Array(image.data.buffer);
  const [plain, faint] = [new Uint32Array(pixels.length), new Uint32Array(pixels.length)];
  let lit = null; // [row, column]

  function color() {
    const [clear, pale] = [shades(255), shades(64)];
    let from = 0;
    for (let l = 0; l < layers; l++) {
      for (let h = 0; h < heads; h++) {
        const shade = off.includes(`${kind}.${l}.${h}`) ? pale : clear;
        for (let i = 0; i < tall; i++, from += wide) {
          const at = (l * (tall + GAP) + i) * across + h * (wide + GAP);
          for (let j = 0; j < wide; j++) {
            if (hidden?.[i * wide + j]) continue;
            plain[at + j] = shade[levels[from + j]];
            faint[at + j] = pale[levels[from + j]];
          }
        }
      }
    }
  }

  function light(row, column) {
    if (lit && lit[0] === row && lit[1] === column) return;
    lit = [row, column];
    pixels.set(row === null && column === null ? plain : faint);
    for (let y = row ?? down; y < down; y += tall + GAP) {
      pixels.set(plain.subarray(y * across, (y + 1) * across), y * across);
    }
    for (let x = column === null || column >= wide ? across : column; x < across; x += wide + GAP) {
      for (let y = 0; y < down; y++) pixels[y * across + x] = plain[y * across + x];
    }
    context.putImageData(image, 0, 0);
  }

  canvas.redraw = () => {
    color();
    lit = null;
    light(null, null);
  };
  canvas.redraw();
  return {
    light,
    isMasked: (i, j) => Boolean(hidden?.[i * wide + j]),
    weight: (l, h, i, j) => levels[((l * heads + h) * tall + i) * wide + j] / 255,
  };
}

// A distance exists only between positions of the same text.
function describe({ confidence, entropy, distance }, kind) {
  const [maximum, bits, far] = [confidence, entropy, distance].map((x) => x.toFixed(2));
  return `mean maximum weight ${maximum}, entropy ${bits} bits${kind === "cross" ? "" : `, distance ${far} tokens`}`;
}

// Shows one head of an answer: its weights as a table, lines between tokens, and a button to ablate it. If the head is
// ablated, the effect of all ablated heads is next to the button. `focus` selects the element that gets the focus.
export async function openHead(place, answer, name, { toggle, effect }, focus = "h3") {
  const [kind, layer, head] = name.split(".");
  place.dataset.head = name;
  const query = { translation: answer.translation, kind, layer: Number(layer), head: Number(head) };
  const opened = await ask("api/head_weights", query);
  if (place.dataset.head !== name) return; // another head has been selected in the meantime
  if (opened.error) return place.replaceChildren(el("p", { class: "error", role: "alert" }, opened.error));
  const { rows, columns, weights } = opened,
    { masked } = answer.heads[kind];
  const lines = drawLines(rows, columns, weights, name);
  const off = answer.ablated_heads,
    isAblated = off.includes(name);
  const without = effect && isAblated ? `Without ${off.length === 1 ? "head" : "heads"} ${off.join(", ")}: ${effect}` : "";
  const button = el(
    "button",
    { type: "button", id: "switch", onclick: () => toggle(name) },
    isAblated ? "Restore this head" : "Ablate this head and run again",
  );
  place.replaceChildren(
    el("h3", { tabindex: -1 }, `Head ${name}`),
    el("p", {}, `This head: ${describe(opened, kind)}.`),
    ...(recorded ? [] : [el("p", { class: "row" }, button, el("span", { class: "effect" }, without))]),
    el(
      "p",
      { class: "soft" },
      "Weights show what a head attends to, not whether the output depends on it.",
      isAblated || recorded ? "" : " Ablate the head to find out.",
    ),
    el(
      "div",
      { class: "pair" },
      matrix({ title: `Weights of head ${name}`, rows, columns, values: weights.flat(), most: 1, masked }),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Lines" }, lines),
    ),
    collapsible("As a table", () =>
      table(
        `Weights of head ${name}; each row sums to 1`,
        ["", ...columns],
        rows.map((row, i) => [row, ...weights[i].map((w) => w.toFixed(4))]),
      ),
    ),
  );
  place.querySelector(focus)?.focus({ preventScroll: true });
  // after its matrix has got its size
  if (focus === "h3") requestAnimationFrame(() => setTimeout(() => place.scrollIntoView({ block: "nearest" })));
}

function drawLines(rows, columns, weights, name) {
  const height = 22 * Math.max(rows.length, columns.length) + 10,
    at = (i) => 16 + 22 * i;
  const svg = el("svg", {
    viewBox: `0 0 420 ${height}`,
    width: 420 * unit(),
    height: height * unit(),
    role: "img",
    class: "lines",
    "data-name": `head-${name}`,
    "aria-label": `Lines of head ${name} from each row to the columns it attends to; the table below has the numbers`,
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
        class: "link",

        "stroke-opacity": Math.min(1, w).toFixed(2),
      }),
    );
  }
  rows.forEach((row, i) => svg.append(el("text", { x: 144, y: at(i) + 4, "text-anchor": "end" }, row)));
  columns.forEach((column, i) => svg.append(el("text", { x: 276, y: at(i) + 4 }, column)));
  return svg;
}
