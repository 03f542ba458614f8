// Search tree: all hypotheses of the latest search, one row for each step, and why the search ended.
import { el, fixed, isPresenting, minus, number, table, collapsible, typeset, unit } from "./parts.js";

const ROW = 84, // distance between two steps, if all steps fit the window
  GAP = 18, // distance between the boxes of two steps, if there is space
  MARGIN = 62, // width of the names of the steps, to the left of the boxes
  LETTERS = [16, 15, 14, 13], // font sizes: the largest with which every step fits the window, otherwise the smallest
  WIDEST = 200; // maximum width of a box; a longer token is cut
const ruler = document.createElement("canvas").getContext("2d");
const lengths = new Map(); // widths of the texts in the latest search; a drawing measures each text several times
const lengthOf = (text, size) => {
  const key = `${size} ${text}`;
  if (!lengths.has(key)) {
    ruler.font = `${size}px system-ui, sans-serif`; // like .drawing in page.css
    lengths.set(key, ruler.measureText(text).width);
  }
  return lengths.get(key);
};

// The key: the meaning of the colors, lines and marks, and of the number in a box.
const MARKS = { finished: "✓", dropped: "✗", "cut off": "…" };
const markOf = ({ fate }) => (MARKS[fate] ? `${MARKS[fate]} ` : "");
const besideLabel = (node) => lengthOf(markOf(node) + fixed(node.score, 3), 13) + 8; // the width of a score next to a token
const KEY = [
  ["kept", "kept"],
  ["finished", "finished"],
  ["dropped", "dropped"],
  ["cut-off", "cut off"],
  ["lit", "best path"],
  ["selected", "selected"],
  ["traced", "path to the pointer or the focus"],
];
const key = () =>
  el(
    "p",
    { class: "soft key" },
    ...KEY.map(([kind, name]) => {
      const rect = el("rect", { x: 2, y: 2, width: 20, height: 12, rx: 3 });
      const box = el("svg", { width: 24, height: 16, "aria-hidden": "true" }, el("g", { class: `box ${kind}` }, rect));
      return el("span", {}, box, ` ${MARKS[name] ?? ""} ${name}`);
    }),
    el("span", {}, "Number: score of the hypothesis, log-probability / divisor (nats)"),
  );

export function start(section) {
  const hint = el("p", {}, "Translate a sentence first; this view then shows its search.");
  const dropped = el("input", { type: "checkbox", id: "dropped" });
  const late = el("input", { type: "checkbox", id: "late" }),
    lateName = el("span");
  const lateLabel = el("label", {}, late, lateName);
  const control = el(
    "p",
    { class: "row", hidden: true },
    el("label", {}, dropped, " show dropped hypotheses"),
    lateLabel,
  );
  const meaning = key();
  meaning.hidden = true;
  const reason = el("p", { id: "stop_reason", role: "status" });
  const place = el("div", { class: "drawing" });
  const chosen = el("div", { class: "opened", "aria-live": "polite" });
  const numbers = el("div");
  section.append(
    hint,
    el("div", { class: "reason" }, reason, control),
    meaning,
    el("div", { class: "whole tree" }, place, chosen),
    numbers,
  );
  let search = null,
    answer = null,
    end = 0, // the step at which the best hypothesis ended
    selected = -1,
    traced = -1,
    drawnFor = "", // the space for which the tree was drawn
    isPresented = false;

  document.addEventListener("translated", ({ detail }) => {
    answer = detail.answer;
    search = answer.beam;
    lengths.clear();
    selected = search.won[0] ?? -1;
    hint.hidden = true;
    control.hidden = meaning.hidden = false;
    reason.textContent = `The search ended: ${search.stop_reason.replace(/-(?=\d)/g, "−")}.`;
    const steps = Math.max(...search.nodes.map(({ length }) => length));
    end = search.nodes[search.won[0]]?.length ?? steps;
    lateLabel.hidden = end === steps;
    lateName.textContent = ` show the ${steps - end} step${steps - end > 1 ? "s" : ""} after the best hypothesis ended`;
    drawnFor = "";
    follow();
    explain();
    tables();
  });
  dropped.addEventListener("change", draw);
  late.addEventListener("change", draw);
  new ResizeObserver(follow).observe(place);
  addEventListener("resize", follow);
  for (const kind of ["pointerover", "pointerout", "focusin", "focusout"]) place.addEventListener(kind, followPath);
  place.addEventListener("click", ({ target }) => nodeOf(target) >= 0 && select(nodeOf(target)));

  const nodeOf = (element) => Number(element?.closest?.("[data-node]")?.dataset.node ?? -1);
  const path = (i) => (i < 0 ? [] : [...path(search.nodes[i].parent), i]);

  // Returns the space for the drawing, in units of `px` CSS pixels.
  function room() {
    const px = unit(),
      high = innerHeight - place.getBoundingClientRect().top - scrollY;
    return { px, available: Math.max(place.clientWidth / px, 240) - MARGIN, high: high / px - 40 };
  }

  // Draws the tree if it is visible and has not been drawn for this space yet.
  function follow() {
    if (!search || section.hidden) return;
    if (isPresented !== isPresenting()) place.replaceChildren(); // so that room() does not lay out the old tree
    if (drawnFor !== JSON.stringify(room())) draw();
  }

  function draw() {
    const rows = [];
    search.nodes.forEach((node, i) => {
      if (node.fate === "dropped" && !dropped.checked) return;
      if (node.length <= end || late.checked) (rows[node.length] ??= []).push(i);
    });
    // place dropped hypotheses after the others, in the order of their parents, so that few edges cross
    const order = new Map(rows.flatMap((row) => row.map((i, k) => [i, k])));
    for (const row of rows.filter(Boolean)) {
      const rank = (i) => (search.nodes[i].fate === "dropped" ? 1e6 + (order.get(search.nodes[i].parent) ?? 0) : 0);
      row.sort((a, b) => rank(a) - rank(b)).forEach((i, k) => order.set(i, k));
    }
    // All boxes are as wide as the longest token. A tree that is wider than the window scrolls.
    const shown = rows.flat(),
      count = rows.length - 1,
      largest = Math.max(...rows.filter(Boolean).map((row) => row.length));
    const longest = (size, isFlat) =>
      Math.max(...shown.map((i) => lengthOf(search.nodes[i].label, size) + (isFlat ? besideLabel(search.nodes[i]) : 0)));
    const narrowest = (size, isFlat) => Math.min(WIDEST, Math.max(56, longest(size, isFlat) + 12)) + (isFlat ? 14 : 10);
    // All steps fit the height of the window, if possible. In a low box, the score is next to the token.
    const { px, available, high } = room(),
      fitting = (isFlat) => LETTERS.find((size) => largest * narrowest(size, isFlat) <= available),
      isFlat = high / count < 64 && Boolean(fitting(true)),
      size = fitting(isFlat) ?? LETTERS.at(-1),
      [lowestStep, lowest] = isFlat ? [34, 24] : [56, 38], // minimum heights of a step and of its boxes
      perStep = Math.min(ROW, Math.max(lowestStep, high / count)),
      pitch = Math.max(Math.min(360, available / largest), narrowest(size, isFlat)),
      width = MARGIN + Math.max(available, largest * pitch),
      height = 24 + count * perStep,
      H = Math.min(50, Math.max(lowest, perStep - GAP)), // height of a box
      w = pitch - 10;
    const middle = (step) => 24 + (step - 0.5) * perStep, // the middle of the boxes of a step
      at = new Map([[-1, [MARGIN + (rows[1].length * pitch) / 2, 12 - H / 2]]]);
    rows.forEach((row, step) => row.forEach((i, k) => at.set(i, [MARGIN + (k + 0.5) * pitch, middle(step)])));
    const svg = el("svg", {
      viewBox: `0 0 ${width} ${height}`,
      width: width * px,
      height: height * px,
      role: "group",
      "data-name": "search-tree",
      "aria-label":
        `Tree of ${at.size - 1} hypotheses over ${rows.length - 1} steps; ` +
        "the path to the best one is drawn as a thick line. Arrow keys move between hypotheses.",
    });
    rows.forEach((row, step) => svg.append(el("text", { x: 0, y: middle(step) + 4, class: "tick" }, `step ${step}`)));
    for (const [i, [x, y]] of at) {
      if (i < 0) continue;
      const [fromX, fromY] = at.get(search.nodes[i].parent) ?? at.get(-1),
        [from, to] = [fromY + H / 2, y - H / 2],
        between = (from + to) / 2;
      const d = `M${fromX} ${from} C${fromX} ${between} ${x} ${between} ${x} ${to}`;
      svg.append(el("path", { d, class: "edge", "data-edge": i }));
    }
    for (const [i, [x, y]] of at) {
      if (i < 0) continue;
      const node = search.nodes[i];
      const fits = (text, size, room = w) => lengthOf(text, size) <= room - 8;
      const fit = (text) => {
        const room = isFlat ? w - besideLabel(node) : w,
          cut = (n) => (n === text.length ? text : `${text.slice(0, n)}…`);
        let n = text.length;
        while (n > 1 && !fits(cut(n), size, room)) n--;
        return cut(n);
      };
      const score = () => {
        const mark = markOf(node);
        const rounded = [3, 2, 1].map((digits) => mark + fixed(node.score, digits)).find((text) => fits(text, 13));
        const text = rounded ?? mark + fixed(node.score, 0); // rounded, because cutting digits would change the number
        const both = `${text} ${node.fate}`;
        return !isFlat && node.fate !== "kept" && fits(both, 13) ? both : text;
      };
      const lift = node.label === "␣" ? 4 : 0; // the sign hangs below its line
      const texts = isFlat
        ? [
            el("text", { x: x - w / 2 + 6, y: y + 5 - lift, class: "start", "font-size": size }, fit(node.label)),
            el("text", { x: x + w / 2 - 6, y: y + 5, class: "value end" }, score()),
          ]
        : [
            el("text", { x, y: y - 0.08 * H - lift, "font-size": size }, fit(node.label)),
            el("text", { x, y: y + 0.3 * H, class: "value" }, score()),
          ];
      svg.append(
        el(
          "g",
          {
            class: `box ${node.fate.replace(" ", "-")}`,
            role: "button",
            "data-node": i,
            "aria-label": `step ${node.length}, ${node.label}, score ${fixed(node.score)}, ${node.fate}`,
          },
          el("title", {}, `${path(i).map((one) => search.nodes[one].label).join(" ")}: ${node.fate}`),
          el("rect", { x: x - w / 2, y: y - H / 2, width: w, height: H, rx: 4 }),
          ...texts,
        ),
      );
    }
    svg.addEventListener("keydown", (event) => {
      const i = Number(event.target.dataset.node),
        node = search.nodes[i];
      if (!node) return;
      const row = rows[node.length],
        k = row.indexOf(i);
      const to = {
        ArrowLeft: row[k - 1],
        ArrowRight: row[k + 1],
        ArrowUp: node.parent,
        ArrowDown: (rows[node.length + 1] ?? []).find((child) => search.nodes[child].parent === i),
        Home: rows.flat()[0],
        End: rows.flat().at(-1),
        Enter: i,
        " ": i,
      }[event.key];
      if (to === undefined || to < 0) return;
      event.preventDefault();
      select(to, true);
    });
    place.replaceChildren(svg);
    drawnFor = JSON.stringify({ px, available, high });
    isPresented = isPresenting();
    traced = -1;
    mark();
  }

  // Marks the best path and the selected hypothesis, and draws their edges above the others.
  function mark() {
    const best = new Set(path(search.won[0] ?? -1)),
      chosenPath = new Set(path(selected)),
      [first] = place.querySelectorAll("[data-node]");
    for (const box of place.querySelectorAll("[data-node]")) {
      const i = Number(box.dataset.node);
      box.classList.toggle("lit", best.has(i));
      box.classList.toggle("selected", i === selected);
      box.classList.toggle("chosen", i !== selected && chosenPath.has(i));
      box.setAttribute("aria-pressed", String(i === selected));
      box.setAttribute("tabindex", i === selected || (selected < 0 && box === first) ? 0 : -1);
    }
    const above = { lit: [], chosen: [] };
    for (const line of place.querySelectorAll("[data-edge]")) {
      const i = Number(line.dataset.edge),
        kind = best.has(i) ? "lit" : chosenPath.has(i) ? "chosen" : search.nodes[i].fate === "dropped" ? "faint" : "";
      for (const one of ["lit", "chosen", "faint"]) line.classList.toggle(one, one === kind);
      above[kind]?.push(line);
    }
    first?.before(...above.chosen, ...above.lit);
  }

  // Highlights the path to the node that the pointer has entered, or to the node with the focus.
  function followPath({ type, target, relatedTarget }) {
    const entered = nodeOf(type === "pointerout" || type === "focusout" ? relatedTarget : target);
    trace(entered < 0 && type === "pointerout" ? nodeOf(place.querySelector("[data-node]:focus")) : entered);
  }

  // Highlights the path from the start to a node (-1: none) and fades the rest.
  function trace(i) {
    if (i === traced) return;
    traced = i;
    const svg = place.querySelector("svg"),
      on = new Set(path(i));
    svg.classList.toggle("tracing", on.size > 0);
    for (const part of svg.querySelectorAll("[data-node], [data-edge]"))
      part.classList.toggle("traced", on.has(Number(part.dataset.node ?? part.dataset.edge)));
    // above the edges that it crosses
    svg.querySelector("[data-node]")?.before(...[...on].map((one) => svg.querySelector(`[data-edge="${one}"]`)));
  }

  function select(i, focus = true) {
    selected = i;
    mark();
    explain();
    if (focus) place.querySelector(`[data-node="${i}"]`)?.focus({ preventScroll: false });
  }

  // Shows the hypothesis that ends at the selected node, and how its score is computed.
  function explain() {
    if (selected < 0) return chosen.replaceChildren();
    const nodes = path(selected).map((i) => search.nodes[i]),
      last = nodes.at(-1);
    const divisor = last.log_probability / last.score;
    const divisorText = Number.isFinite(divisor) ? fixed(divisor) : "1";
    const exponent = answer.settings.length_penalty;
    chosen.replaceChildren(
      el("h3", {}, `Hypothesis of length ${last.length}, ${last.fate}`),
      el("p", { class: "hypothesis", dir: "auto" }, nodes.map(({ label }) => label).join(" ")),
      el(
        "p",
        { class: "formula" },
        ...[
          "score = log-probability / divisor",
          `= ${fixed(last.log_probability)} / ${divisorText}`,
          `= ${fixed(last.score)}`,
        ].flatMap((part) => [el("span", {}, part), " "]),
      ),
      ...(Math.abs(divisor / ((5 + last.length) / 6) ** exponent - 1) < 1e-3
        ? [el("p", { class: "soft" }, ...typeset(`divisor = ((5 + ${last.length}) / 6)^(${minus(exponent)})`))]
        : []),
      table(
        "Its log-probability, a sum over tokens (nats)",
        ["token", "log p", "sum"],
        nodes.map((node, n) => [
          node.label,
          fixed(node.log_probability - (nodes[n - 1]?.log_probability ?? 0)),
          fixed(node.log_probability),
        ]),
      ),
    );
  }

  function tables() {
    numbers.replaceChildren(
      collapsible("All hypotheses as a table", () =>
        table(
          "Hypotheses in full precision",
          ["id", "step", "parent", "token", "log-probability (nats)", "score", "fate"],
          search.nodes.map((n, i) => [
            i,
            n.length,
            n.parent < 0 ? "begin" : n.parent,
            n.label,
            n.log_probability,
            n.score,
            n.fate,
          ]),
        ),
      ),
      collapsible("Bounds at each step", () =>
        table(
          "The search ends once no live hypothesis can beat the finished ones",
          ["step", "lowest score to beat", "highest score still possible"],
          search.bounds.map((pair, i) => [i + 1, ...pair.map(number)]),
        ),
      ),
    );
  }
}
