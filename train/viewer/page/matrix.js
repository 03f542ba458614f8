// A matrix as colored cells on a canvas, with headers, a legend, and the value under the pointer or the cursor.
import { bytes, el, inkOn, level, maskedColors, minus, number, pixelScale, repaint, scale } from "./parts.js";

const NARROWEST = 2, // CSS pixels per column; wider matrices scroll
  WIDEST = 3.4, // maximum width of a column, in letter heights
  SMALLEST = 0.64, // size of the letters in small cells, relative to the others
  MOST_NUMBERS = 3000; // numbers drawn in cells

const ruler = document.createElement("canvas").getContext("2d");

// All canvases first get their sizes, so that the browser lays out the page only once. Then `repaint` draws them.
const sizes = new ResizeObserver((entries) => {
  const attached = entries.filter(({ target }) => target.isConnected); // others have no style
  if (!attached.length) return;
  const styles = attached.map(({ target }) => getComputedStyle(target)).map(({ fontSize, fontFamily }) => [fontSize, fontFamily]);
  const resized = attached
    .filter(({ target, contentRect }, i) => target.firstChild.fit(contentRect.width, ...styles[i]))
    .map(({ target }) => target.firstChild);
  repaint(resized);
});

export const floats = (base64) => new Float32Array(bytes(base64).buffer);

// Returns a figure for {title, rows, columns, values}. `rows` and `columns` are labels, or `columns` is the name of a
// dimension and the labels are indices; `values` is a flat array. `masked`: base64-encoded bytes, 1 for a masked cell,
// which is hatched. `caption`: the nodes of a typeset title. `most`: the value of the darkest color. `about(i, j)`: more
// text for the readout of a cell. `aligned`: the row labels of all matrices whose columns begin at the same place. Small
// and large numbers are drawn in units of a power of ten, so that they fit.
export function matrix({
  title,
  caption = [title],
  rows,
  columns,
  values,
  most,
  masked,
  about = () => "",
  missing = "",
  aligned = rows,
}) {
  const [down, across] = [
    rows.length,
    Array.isArray(columns) ? columns.length : Math.round(values.length / rows.length),
  ];
  const column = (j) => (Array.isArray(columns) ? columns[j] : `${columns} ${j}`);
  most ??= largest(values);
  const hidden = masked ? bytes(masked) : null,
    isHatched = (cell) => Boolean(hidden?.[cell]),
    hasHatched = hidden?.includes(1) ?? false;
  const exponent = most && (most < 0.1 || most >= 1000) ? Math.floor(Math.log10(most)) : 0,
    inCell = (value, digits) => compact(value / 10 ** exponent, most / 10 ** exponent, digits);
  const factor = el("span", { class: "soft" });
  const canvas = el("canvas", {
    tabindex: 0,
    role: "img",
    "aria-label":
      `${title}: ${down} rows (${rows.slice(0, 12).join(" ")}${down > 12 ? " …" : ""}), ${across} columns, ` +
      `largest magnitude ${number(most)}. Use the arrow keys to read its values.`,
  });
  const frame = el("span", { class: "cursor", hidden: true });
  const box = el("div", { class: "cells" }, canvas, frame);
  const readout = el("p", { class: "read", "aria-live": "polite" }, missing);
  let layout = null,
    image = null,
    cursor = null;

  // Sets the size of the canvas; returns whether it has changed.
  canvas.fit = (available, fontSize, fontFamily) => {
    if (!available || (layout?.available === available && layout.fontSize === fontSize)) return false;
    layout = { available, fontSize, ...place(available, parseFloat(fontSize), fontFamily) };
    canvas.style.width = `${layout.width}px`;
    canvas.style.height = `${layout.height}px`;
    factor.textContent = layout.numbers && exponent ? `numbers × ${powerOfTen(exponent)}` : "";
    point();
    return true;
  };
  canvas.redraw = () => layout && paint();

  function place(available, size, fontFamily) {
    ruler.font = `${size}px ${fontFamily}`;
    const widest = (labels) => Math.max(0, ...labels.map((label) => ruler.measureText(String(label)).width));
    const left = Math.ceil(Math.min(widest(aligned), 9 * size)) + 8;
    const cellWidth = Math.min(WIDEST * size, Math.max(NARROWEST, (available - left - 2) / across));
    const cellHeight = down <= 48 ? size * 1.35 : Math.max(3, (size * 60) / down);
    const named = Array.isArray(columns);
    const turned = named && widest(columns) > cellWidth - 3;
    const top = named ? (turned ? Math.ceil(Math.min(widest(columns), 7 * size)) + 8 : size * 1.5) : size * 1.4;
    const [width, height] = [left + across * cellWidth + 2, top + down * cellHeight + 2];
    const smaller = (most) => Math.max(SMALLEST * size, Math.min(size, most));
    // numbers in the cells, with as many digits as fit
    const room = (cellWidth - 3) / (ruler.measureText("0").width / size); // in letters at a font size of 1 px
    const numbers = (
      room >= 2 * SMALLEST * size && values.length <= MOST_NUMBERS ? (exponent ? [2, 1, 0] : [2, 1]) : []
    )
      .map((digits) => {
        const letters = values.reduce(
          (n, value, cell) => (isHatched(cell) ? n : Math.max(n, inCell(value, digits).length)),
          1,
        );
        return { digits, size: Math.min(size, cellHeight * 0.8, room / letters) };
      })
      .find((one) => one.size >= SMALLEST * size);
    const columnSize = turned ? smaller(cellWidth / 1.05) : size;
    return { width, height, size, fontFamily, left, top, cellWidth, cellHeight, named, turned, columnSize, numbers };
  }

  // One pixel for each value, which the browser scales to cells. Hatched cells are transparent.
  function pixels(colors) {
    if (image?.colors === colors) return image.canvas;
    const small = new OffscreenCanvas(across, down),
      data = new ImageData(across, down);
    const pixels = new Uint32Array(data.data.buffer);
    for (let i = 0; i < values.length; i++)
      if (!hasHatched || !isHatched(i)) pixels[i] = colors[level(values[i], most)];
    small.getContext("2d").putImageData(data, 0, 0);
    image = { colors, canvas: small };
    return small;
  }

  function paint() {
    const { width, height, size, fontFamily, left, top, cellWidth, cellHeight, named, turned, columnSize, numbers } =
      layout;
    const ratio = devicePixelRatio || 1,
      ink = getComputedStyle(canvas).color;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d"),
      inks = scale().map(inkOn);
    context.scale(ratio, ratio);
    context.font = `${size}px ${fontFamily}`;
    context.textBaseline = "middle";
    context.imageSmoothingEnabled = false;
    context.drawImage(pixels(pixelScale()), left, top, across * cellWidth, down * cellHeight);
    hatch(context);
    // raises a label that extends below its line, such as the symbol for a space
    const lift = (label) => {
      const { actualBoundingBoxAscent: above, actualBoundingBoxDescent: below } = context.measureText(label);
      return label === "␣" ? (below - above) / 2 : Math.max(0, below - 0.5 * size); // this symbol is moved to the middle
    };
    const everyRow = Math.ceil((size * 1.1) / cellHeight);
    context.fillStyle = ink;
    context.textAlign = "right";
    rows.forEach((label, i) => {
      if (i % everyRow) context.fillRect(left - 6, top + (i + 0.5) * cellHeight, 4, 1);
      else context.fillText(label, left - 6, top + (i + 0.5) * cellHeight - lift(label), left - 8);
    });
    context.font = `${columnSize}px ${fontFamily}`;
    if (turned) {
      context.textAlign = "left";
      const everyColumn = Math.ceil(columnSize / cellWidth);
      for (let j = 0; j < across; j++) {
        if (j % everyColumn) {
          context.fillRect(left + (j + 0.5) * cellWidth, top - 8, 1, 4); // a tick for a label without room
          continue;
        }
        context.save();
        context.translate(left + (j + 0.5) * cellWidth, top - 4);
        context.rotate(-Math.PI / 2);
        context.fillText(columns[j], 0, -lift(columns[j]), top - 8);
        context.restore();
      }
    } else {
      context.textAlign = named ? "center" : "left";
      const ticks = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024].find((n) => n * cellWidth >= size * 3.2) ?? 2048;
      for (let j = 0; j < across; j += named ? 1 : ticks)
        context.fillText(named ? columns[j] : j, left + (named ? j + 0.5 : j) * cellWidth, top - size * 0.7);
    }
    if (numbers) {
      context.font = `${numbers.size}px ${fontFamily}`;
      context.textAlign = "center";
      for (let i = 0; i < down; i++) {
        for (let j = 0; j < across; j++) {
          if (isHatched(i * across + j)) continue;
          const value = values[i * across + j];
          context.fillStyle = inks[level(value, most)];
          context.fillText(
            inCell(value, numbers.digits),
            left + (j + 0.5) * cellWidth,
            top + (i + 0.5) * cellHeight,
            cellWidth - 2,
          );
        }
      }
    }
  }

  // Draws diagonal lines over the cells without a value.
  function hatch(context) {
    if (!hasHatched) return;
    const { left, top, cellWidth, cellHeight, size } = layout,
      n = Math.max(4, Math.round(size / 2.5));
    context.fillStyle = hatching(context, n);
    for (let i = 0; i < down; i++) {
      for (let j = 0; j < across; j++) {
        const first = j;
        while (j < across && isHatched(i * across + j)) j++;
        if (j > first)
          context.fillRect(left + first * cellWidth, top + i * cellHeight, (j - first) * cellWidth, cellHeight);
      }
    }
  }

  // Frames the cell at the cursor.
  function point() {
    frame.hidden = !cursor || !layout;
    if (frame.hidden) return;
    const { left, top, cellWidth, cellHeight } = layout;
    const [x, y] = [canvas.offsetLeft + left + cursor[1] * cellWidth, canvas.offsetTop + top + cursor[0] * cellHeight];
    Object.assign(frame.style, { left: `${x}px`, top: `${y}px`, width: `${cellWidth}px`, height: `${cellHeight}px` });
  }

  function read(i, j) {
    if (cursor && cursor[0] === i && cursor[1] === j) return;
    cursor = [i, j];
    const value = values[i * across + j];
    const mark = hidden?.[i * across + j] ? " (masked)" : "";
    readout.textContent = `${rows[i]}, ${column(j)}: ${number(value)}${mark}${about(i, j)}`;
    point();
  }

  function leave() {
    cursor = null;
    readout.textContent = missing;
    point();
  }

  canvas.addEventListener("pointermove", (event) => {
    if (!layout) return;
    const i = Math.floor((event.offsetY - layout.top) / layout.cellHeight),
      j = Math.floor((event.offsetX - layout.left) / layout.cellWidth);
    if (i >= 0 && j >= 0 && i < down && j < across) read(i, j);
  });
  canvas.addEventListener("pointerleave", () => document.activeElement !== canvas && leave());
  canvas.addEventListener("focus", () => read(...(cursor ?? [0, 0])));
  canvas.addEventListener("blur", leave);
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const end = { Home: 0, End: across - 1 }[event.key];
    if (!by && end === undefined) return;
    event.preventDefault();
    if (end !== undefined) return read(cursor[0], end);
    const [i, j] = [cursor[0] + by[0], cursor[1] + by[1]];
    if (i >= 0 && j >= 0 && i < down && j < across) read(i, j);
  });
  sizes.observe(box);
  const figure = el(
    "figure",
    { class: across > (Array.isArray(columns) ? 8 : 40) ? "matrix wide" : "matrix" },
    el(
      "figcaption",
      {},
      el("b", {}, ...caption),
      ` ${down} × ${across} `,
      legend(most, values, hasHatched ? "masked" : ""),
      factor,
    ),
    box,
    readout,
  );
  figure.style.setProperty("--down", down); // the letters of a small matrix grow in a presentation
  figure.style.setProperty("--across", across);
  return figure;
}

// Returns a pattern of diagonal lines that repeats every n pixels.
export function hatching(context, n) {
  const tile = new OffscreenCanvas(n, n),
    lines = tile.getContext("2d");
  [lines.strokeStyle, lines.fillStyle] = maskedColors();
  lines.lineWidth = n / 4;
  lines.fillRect(0, 0, n, n);
  for (const x of [-n, 0, n]) {
    lines.moveTo(x, n);
    lines.lineTo(x + n, 0);
  }
  lines.stroke();
  return context.createPattern(tile, "repeat");
}

// Returns a number in few characters, for a cell of a matrix whose largest magnitude is `most`.
function compact(x, most, digits) {
  const size = Math.abs(x);
  if (!Number.isFinite(x)) return number(x);
  if (size < 0.5 * 10 ** -digits && (size === 0 || most >= 0.1)) return "0";
  const isPlain = size < 1000 && size >= 0.5 * 10 ** -digits,
    places = Math.max(0, size < 10 ? digits : size < 100 ? digits - 1 : 0);
  const text = isPlain ? x.toFixed(places) : x.toExponential(0).replace("e+", "e");
  if (most > 1) return minus(text);
  if (Math.abs(text) !== 1) return minus(text.replace("0.", "."));
  const rest = size >= 1 - 1e-6 ? "" : digits > 1 ? ".0" : "."; // a probability just below 1 is not "1"
  return minus(text.replace(/\.0+$/, "")) + rest;
}

function largest(values) {
  let most = 0;
  for (const value of values) if (Math.abs(value) > most && Number.isFinite(value)) most = Math.abs(value);
  return most;
}

const powerOfTen = (exponent) =>
  `10${exponent < 0 ? "⁻" : ""}${[...String(Math.abs(exponent))].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`;

// Returns the color scale from -most (or 0) to most, and the meaning of hatched cells, if there are any.
export function legend(most, values, hatched = "") {
  const signed = !values || values.some((value) => value < 0 && Number.isFinite(value));
  const bar = el("span", { class: signed ? "bar signed" : "bar", "aria-hidden": "true" });
  if (!most && values?.some((value) => !Number.isFinite(value))) return el("span"); // no finite number to scale
  const key = hatched ? [el("span", { class: "bar hatched", "aria-hidden": "true" }), hatched] : [];
  return el("span", { class: "legend" }, signed ? `−${number(most)} ` : "0 ", bar, ` ${number(most)} `, ...key);
}

// Returns the matrix of nested lists, which the Step view has for vectors and for matrices of two or three axes.
// Returns nothing for a number.
export function fromNested(title, value) {
  if (!Array.isArray(value)) return "";
  const flat = [value].flat(Infinity).map((x) => ({ inf: Infinity, "-inf": -Infinity })[x] ?? Number(x));
  const depth = (x) => (Array.isArray(x) ? 1 + depth(x[0]) : 0);
  const rows = depth(value) < 2 ? 1 : [value].flat(depth(value) - 1).length;
  const labels = Array.from({ length: rows }, (_, i) => (rows === 1 ? "" : String(i)));
  const columns = Array.from({ length: flat.length / rows }, (_, j) => String(j));
  return matrix({ title, rows: labels, columns, values: flat });
}

// Returns a small picture of a matrix from signed bytes: one pixel per value.
export function thumbnail({ rows, columns, bytes: encoded }) {
  const canvas = el("canvas", { width: columns, height: rows, class: "thumbnail", "aria-hidden": "true" });
  const values = new Int8Array(bytes(encoded).buffer);
  canvas.redraw = () => {
    const context = canvas.getContext("2d"),
      image = context.createImageData(columns, rows),
      colors = pixelScale();
    new Uint32Array(image.data.buffer).set(Uint32Array.from(values, (value) => colors[value + 127]));
    context.putImageData(image, 0, 0);
  };
  canvas.redraw();
  return canvas;
}
