// Beam tree: every hypothesis of the latest translation's search, and why the search ended.
import { el, number, table, collapsible } from "./parts.js";
import { saving } from "./save.js";

const W = 104,
  H = 46;

export function start(section) {
  const hint = el("p", {}, "Translate a sentence first; this view then shows its search.");
  const dropped = el("input", { type: "checkbox", id: "dropped" });
  const control = el(
    "p",
    { class: "row", hidden: true },
    el("label", {}, dropped, " show dropped hypotheses"),
    saving("beam", () => place.firstChild),
  );
  const why = el("p", { id: "why", role: "status" });
  const place = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Beam tree" });
  const numbers = el("div");
  section.append(hint, why, control, place, numbers);
  let search = null;

  document.addEventListener("translated", ({ detail }) => {
    search = detail.beam;
    draw();
  });
  dropped.addEventListener("change", draw);

  function draw() {
    hint.hidden = true;
    control.hidden = false;
    why.textContent = `The search ended: ${search.why}.`;
    const bestPath = new Set();
    for (let i = search.won[0] ?? -1; i >= 0; i = search.nodes[i].parent) bestPath.add(i);
    const columns = [],
      at = new Map([[-1, [10, 40]]]);
    search.nodes.forEach((node, i) => {
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
        `Tree of ${at.size - 1} hypotheses over ${columns.length - 1} steps; the path to the best one is thick. ` +
        "The table below has all numbers.",
    });
    for (let n = 1; n < columns.length; n++)
      svg.append(el("text", { x: 30 + (n - 1) * (W + 26) + W / 2, y: 12, class: "tick" }, `step ${n}`));
    for (const [i, [x, y]] of at) {
      if (i < 0) continue;
      const [px, py] = at.get(search.nodes[i].parent);
      const from = search.nodes[i].parent < 0 ? px : px + W / 2;
      svg.append(el("line", { x1: from, y1: py, x2: x - W / 2, y2: y, class: bestPath.has(i) ? "edge lit" : "edge" }));
    }
    for (const [i, [x, y]] of at) {
      if (i < 0) continue;
      const node = search.nodes[i];
      svg.append(
        el(
          "g",
          { class: `box ${node.fate.replace(" ", "-")}${bestPath.has(i) ? " lit" : ""}` },
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
