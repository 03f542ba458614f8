// Draws a constituency tree from its brackets, with the words at the bottom; d3-hierarchy computes the layout.
import { el, unit } from "./parts.js";

const STEP_Y = 58;

// (TOP (S (NP (PRP It)) (VP (VBD rained)))) -> {name, children}
function parse(brackets) {
  const tokens = brackets.match(/[()]|[^\s()]+/g) ?? [];
  const root = { name: "", children: [] },
    stack = [root];
  tokens.forEach((token, i) => {
    if (token === "(") {
      const node = { name: "", children: [] };
      stack.at(-1).children.push(node);
      stack.push(node);
    } else if (token === ")") {
      if (stack.length > 1) stack.pop();
    } else if (tokens[i - 1] === "(") stack.at(-1).name = token;
    else stack.at(-1).children.push({ name: token });
  });
  return root.children[0] ?? root;
}

export function drawTree(brackets) {
  const root = d3.hierarchy(parse(brackets));
  const width = ({ data }) => Math.max(40, data.name.length * 9.5 + 14);
  d3
    .cluster()
    .nodeSize([1, STEP_Y])
    .separation((a, b) => (width(a) + width(b)) / 2)(root);
  const nodes = root.descendants(),
    left = Math.min(...nodes.map((node) => node.x - width(node) / 2)),
    right = Math.max(...nodes.map((node) => node.x + width(node) / 2)),
    lowest = Math.max(...nodes.map(({ y }) => y));
  const svg = el("svg", {
    viewBox: `${left} -24 ${right - left} ${lowest + 50}`,
    width: (right - left) * unit(),
    height: (lowest + 50) * unit(),
    role: "img",
    class: "tree",
    "data-name": "tree",
    "aria-label": `Tree: ${brackets}`,
  });
  for (const { source, target } of root.links()) {
    const d = `M${source.x} ${source.y + 8} L${target.x} ${source.y + STEP_Y / 2} L${target.x} ${target.y - 16}`;
    svg.append(el("path", { class: target.children ? "edge" : "edge word", d }));
  }
  for (const { x, y, data, children } of nodes)
    svg.append(el("text", { x, y, class: children ? "label" : "word" }, data.name));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tree" }, svg);
}
