// Beam tree: every hypothesis of the last translation's search, and why it ended.
import { el, number, table, twin } from "./parts.js";
import { saving } from "./save.js";

const W = 104,
  H = 46;

export function start(section) {
  const hint = el("p", {}, "Translate a sentence first; its search is shown here.");
  const dropped = el("input", { type: "checkbox", id: "dropped" });
  const control = el(
    "p",
    { class: "row", hidden: true },
    el("label", {}, dropped, " with those that were dropped"),
    saving("beam", () => place.firstChild),
  );
  const why = el("p", { id: "why", role: "status" });
  const place = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Beam tree" });
  const numbers = el("div");
  section.append(hint, why, control, place, numbers);
  let found = null;

  document.addEventListener("translated", ({ detail }) => {
    found = detail.beam;
    draw();
  });
  dropped.addEventListener("change", draw);

  function draw() {
    hint.hidden = true;
    control.hidden = false;
    why.textContent = `Why it ended: ${found.why}.`;
    const way = new Set();
    for (let i = found.won[0] ?? -1; i >= 0; i = found.nodes[i].parent) way.add(i);
    const columns = [],
      at = new Map([[-1, [10, 40]]]);
    found.nodes.forEach((node, i) => {
      if (node.fate === "dropped" && !dropped.checked) return;
      const column = (columns[node.length] ??= []);
      at.set(i, [30 + (node.length - 1) * (W + 26) + W / 2, 40 + column.length * (H + 8)]);
      column.push(i);
    });
    const width = 40 + (columns.length - 1) * (W + 26),
      height = 70 + Math.max(...columns.filter(Boolean).map((c) => c.length)) * (H + 8);
    const svg = el("svg", {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      "aria-label":
        `Tree of ${at.size - 1} hypotheses over ${columns.length - 1} steps; the way to the best one is thick. ` +
        "All of it is in the table below.",
    });
    for (let n = 1; n < columns.length; n++)
      svg.append(el("text", { x: 30 + (n - 1) * (W + 26) + W / 2, y: 12, class: "tick" }, `step ${n}`));
    for (const [i, [x, y]] of at) {
      if (i < 0) continue;
      const [px, py] = at.get(found.nodes[i].parent);
      const from = found.nodes[i].parent < 0 ? px : px + W / 2;
      svg.append(el("line", { x1: from, y1: py, x2: x - W / 2, y2: y, class: way.has(i) ? "edge lit" : "edge" }));
    }
    for (const [i, [x, y]] of at) {
      if (i < 0) continue;
      const node = found.nodes[i];
      svg.append(
        el(
          "g",
          { class: `box ${node.fate.replace(" ", "-")}${way.has(i) ? " lit" : ""}` },
          el("title", {}, `${node.label}: score ${node.score}, log-probability ${node.log_probability}, ${node.fate}`),
          el("rect", { x: x - W / 2, y: y - H / 2, width: W, height: H, rx: 3 }),
          el("text", { x, y: y - 7 }, node.label.length > 13 ? `${node.label.slice(0, 12)}…` : node.label),
          el("text", { x, y: y + 7, class: "value" }, node.score.toFixed(4)),
          el("text", { x, y: y + 19, class: "how" }, node.fate),
        ),
      );
    }
    place.replaceChildren(svg);
    numbers.replaceChildren(
      twin("All hypotheses as a table", () =>
        table(
          "Hypotheses, with all digits",
          ["number", "step", "from", "piece", "log-probability (nats)", "score", "fate"],
          found.nodes.map((n, i) => [
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
      twin("What each step had to beat", () =>
        table(
          "Scores, step by step: the search ends where nothing that lives can come above what has been found",
          ["step", "least of the best found", "most that a live one can reach"],
          found.bounds.map((pair, i) => [i + 1, ...pair.map(number)]),
        ),
      ),
    );
  }
}
