// Step: the graph of an expression, forward then backward, one node at a time, with values from the engine.
import { ask, collapsible, el, formula, isPresenting, number, recorded, recording, short, stepByKeys, table, unit } from "./parts.js";
import { fromNested } from "./matrix.js";

const EXAMPLES = [
  ["a * b + a", "a = 3; b = 2"],
  ["softmax(x) * w", "x = [1, 2, 3]; w = [1, 0, 0]"],
  ["sum(relu(x @ w))", "x = [[1, -2], [3, 1]]; w = [[1], [2]]"],
  ["one head of attention", ""],
  ["one head, causal", ""],
];

// Returns the labels of edges, each at a place where it covers the fewest other edges and labels.
function edgeLabels(edges, nodes) {
  const points = nodes.flatMap(({ edges = [] }) => edges.map((way) => [way, along(way, 80)])),
    placed = [];
  return edges.map(([way, text]) => {
    const [half, high] = [3.4 * text.length + 3, 9];
    const covers = ([x, y]) => {
      const isIn = ([a, b]) => Math.abs(a - x) < half + 3 && Math.abs(b - y) < high + 2;
      const others = points.filter(([other]) => other !== way).flatMap(([, all]) => all);
      return (
        others.filter(isIn).length +
        99 * placed.filter(([a, b, w]) => Math.abs(a - x) < half + w && Math.abs(b - y) < 2 * high).length
      );
    };
    const candidates = along(way.slice(-2), 10).slice(4, -3);
    const [x, y] = candidates.reduce((best, point) => (covers(point) < covers(best) ? point : best));
    placed.push([x, y, half]);
    return el(
      "g",
      { class: "edge-label" },
      el("rect", { x: x - half, y: y - high, width: 2 * half, height: 2 * high, rx: 3 }),
      el("text", { x, y: y + 4 }, text),
    );
  });
}

// Returns the sizes of nested lists, such as [2, 3]; [] for a number.
const shapeOf = (x) => (Array.isArray(x) ? [x.length, ...shapeOf(x[0])] : []);
// Returns a value as text of limited length; a list that is too long is replaced by its shape.
const brief = (x, most) => {
  const isLong = Array.isArray(x) && number(x).length > most;
  return isLong ? shapeOf(x).join(" × ") : short(x, most);
};

// Returns points along a line of straight pieces, `n` on each.
const along = (way, n) =>
  way.slice(1).flatMap(([x, y], i) => {
    const [a, b] = way[i];
    return Array.from({ length: n + 1 }, (_, k) => [a + ((x - a) * k) / n, b + ((y - b) * k) / n]);
  });

export function start(section) {
  let graph = null,
    at = 0,
    answered = -1,
    requests = 0,
    isSourceOpen = false;
  const expression = el("input", { id: "expression", value: EXAMPLES[0][0], autocomplete: "off", spellcheck: "false" });
  const values = el("input", { id: "values", value: EXAMPLES[0][1], autocomplete: "off", spellcheck: "false" });
  const ready = el("select", { id: "ready" }, ...EXAMPLES.map(([name], i) => el("option", { value: i }, name)));
  const predict = el("input", { type: "checkbox", id: "predict" });
  const form = el(
    "form",
    {
      class: "row",
      onsubmit: (event) => {
        event.preventDefault();
        const given = [expression.value, values.value];
        ready.selectedIndex = EXAMPLES.findIndex((example) => String(example) === String(given)); // -1: another one
        load();
      },
    },
    el("label", {}, "Expression ", expression),
    el("label", {}, "Values ", values),
    el("button", {}, "Show"),
    el("span", { class: "soft" }, "Operations: exp, log, relu, softmax, sum, @, … Keys: ← → Home End"),
  );
  const moves = [
    ["⇤", "First", -Infinity],
    ["←", "Previous", -1],
    ["→", "Next", 1],
    ["⇥", "Last", Infinity],
  ].map(([sign, name, by]) => el("button", { type: "button", "aria-label": name, onclick: () => go(by) }, sign));
  const place = el("output", { id: "place", "aria-live": "polite" });
  const drawing = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Graph" });
  const panel = el("div", { id: "node", class: "opened", "aria-live": "polite" });
  const all = collapsible("All values as a table", () => numbers());
  section.append(
    ...(recorded ? [] : [form]),
    el(
      "div",
      { class: "row controls" },
      el("div", { class: "group", role: "group", "aria-label": "Walk through the passes" }, ...moves),
      place,
      ...(recorded ? [] : [el("label", {}, "Examples ", ready)]),
      el("label", {}, predict, " quiz me"),
    ),
    el("div", { class: "whole" }, drawing, panel),
    all,
  );
  ready.addEventListener("change", () => {
    const [text, given] = EXAMPLES[ready.value];
    [expression.value, values.value] = given ? [text, given] : ["", ""];
    load(Number(ready.value) >= 3 && { causal: Number(ready.value) === 4 });
    moves[2].focus(); // from here the arrow keys walk through the graph
  });
  predict.addEventListener("change", () => {
    answered = -1;
    draw();
  });
  stepByKeys(section, go);
  new ResizeObserver(() => graph && fit()).observe(drawing);
  addEventListener("resize", () => graph && fit());

  async function load(head = null) {
    // an attention head, or the expression
    let query;
    try {
      query = head ? { head } : { expression: expression.value, values: read() };
    } catch (error) {
      return showError(error.message);
    }
    place.textContent = "…";
    const request = ++requests,
      answer = await ask("api/step", query);
    if (request !== requests) return;
    if (answer.error) return showError(answer.error);
    [graph, at, answered] = [answer, 0, -1];
    recording.set("step", answer);
    draw();
  }

  function showError(text) {
    graph = null;
    drawing.replaceChildren();
    place.textContent = "";
    panel.replaceChildren(el("p", { class: "error", role: "alert" }, text));
  }

  function read() {
    const variables = {};
    for (const part of values.value.split(";").filter((text) => text.trim())) {
      const [name, value] = part.split("=").map((text) => text.trim());
      try {
        variables[name] = JSON.parse(value);
      } catch {
        throw new Error(`Values: expected NAME = JSON as in a = 3; x = [1, 2]; got ${part.trim()}`);
      }
    }
    return variables;
  }

  const forward = () => graph.nodes.filter((node) => !node.leaf);
  const last = () => forward().length + graph.backward_order.length;
  const node = (key) => graph.nodes.find((one) => one.key === key);

  function go(by) {
    if (!graph) return;
    if (predict.checked && by === 1 && at < last() && answered !== at) return quiz();
    at = Math.min(last(), Math.max(0, at + by));
    draw();
  }

  // Returns the node that `step` visits: {node, back}
  function nodeAt(step) {
    const steps = forward().length;
    return step <= steps
      ? { node: forward()[step - 1], back: false }
      : { node: node(graph.backward_order[step - steps - 1]), back: true };
  }

  const firstOf = (x) => (Array.isArray(x) ? firstOf(x[0]) : x);

  function quiz() {
    const next = nodeAt(at + 1),
      which = next.back ? next.node.returned.findIndex((g) => g !== null) : 0;
    if (which < 0) {
      answered = at;
      return go(1);
    }
    const shown = next.back ? next.node.returned[which] : next.node.value;
    const [truth, isList] = [firstOf(shown), Array.isArray(shown)];
    const what = next.back
      ? `gradient that ${next.node.name} passes to ${node(next.node.inputs[which]).name}`
      : `value of ${next.node.name}`;
    const field = el("input", { id: "guess", inputmode: "decimal", autocomplete: "off", size: 8 });
    panel.replaceChildren(
      el(
        "form",
        {
          class: "row",
          onsubmit: (event) => {
            event.preventDefault();
            const guess = field.value.trim().replace(",", ".").replace("−", "-"),
              near = Math.abs(Number(guess) - truth) <= 0.006 * Math.max(1, Math.abs(truth));
            answered = at;
            go(1);
            const right = guess !== "" && (near || number(guess) === number(truth)); // non-finite values are strings
            panel.prepend(
              el("p", { class: right ? "right" : "error" }, right ? "Correct." : `The answer is ${number(truth)}.`),
            );
            moves[2].focus();
          },
        },
        el("label", {}, `What is the ${isList ? "first entry of the " : ""}${what}? `, field),
        el("button", {}, "Check"),
      ),
    );
    field.focus();
  }

  function known(one) {
    // returns the value and the gradient of a node after the current step, if known
    const steps = forward().length,
      back = Math.max(0, at - steps);
    return {
      value: one.leaf || forward().indexOf(one) < at ? one.value : null,
      gradient: at >= steps ? (graph.sums[back][one.key] ?? null) : null,
      // whether an operation that is visited later adds to the gradient
      isPartial: graph.backward_order.slice(back).some((key) => node(key).inputs.includes(one.key)),
    };
  }

  function draw() {
    if (!graph) return;
    const steps = forward().length;
    const phase = at === 0 ? "not started" : at <= steps ? "forward" : "backward";
    place.textContent = `${at} of ${last()}, ${phase}`;
    const here = at ? nodeAt(at) : null;
    const svg = el("svg", {
      viewBox: `0 0 ${graph.width} ${graph.height}`,
      role: "img",
      class: "graph",
      "data-name": "step",
      "aria-label": `Graph of ${graph.nodes.length} nodes, inputs at the bottom`,
    });
    const labels = [];
    for (const one of graph.nodes) {
      const lit = here?.back && here.node === one;
      one.edges.forEach((way, i) => {
        svg.append(
          el("path", {
            d: `M${way.map((point) => point.map(Math.round).join(" ")).join(" L")}`,
            class: lit ? "edge lit" : "edge",
          }),
        );
        if (lit) labels.push([way, one.returned[i] === null ? "no gradient" : brief(one.returned[i], 14)]);
      });
    }
    svg.append(...edgeLabels(labels, graph.nodes));
    for (const one of graph.nodes) {
      const { value, gradient, isPartial } = known(one);
      const soFar = isPartial ? " so far" : "";
      svg.append(
        el(
          "g",
          { class: `box${one.leaf ? " leaf" : ""}${here?.node === one ? " lit" : ""}`, "data-key": one.key },
          el("rect", { x: one.x - one.width / 2, y: one.y - 26, width: one.width, height: 52, rx: one.leaf ? 18 : 3 }),
          el("text", { x: one.x, y: one.y - 11 }, one.name),
          el("text", { x: one.x, y: one.y + 5, class: "value" }, value === null ? "?" : brief(value, one.width / 8)),
          el(
            "text",
            { x: one.x, y: one.y + 20, class: "gradient" },
            gradient === null ? "" : `grad ${brief(gradient, one.width / 8 - 5 - soFar.length)}${soFar}`,
          ),
        ),
      );
    }
    drawing.replaceChildren(svg);
    fit();
    panel.replaceChildren(...about(here));
    svg.querySelector(".box.lit")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    all.refresh();
  }

  // Makes the graph as large as the window allows. Its letters (14 units) are 0.8 to 2.4 rem high; in a presentation, whose
  // rem is larger, they may be smaller so that the graph fits.
  function fit() {
    const svg = drawing.firstElementChild;
    if (!svg) return;
    const rem = 16 * unit();
    const high = innerHeight - (drawing.getBoundingClientRect().top + scrollY) - 3.5 * rem,
      fitting = Math.min(drawing.clientWidth / graph.width, high / graph.height),
      [least, most] = [isPresenting() ? 0.6 : 0.8, 2.4].map((letter) => (letter * rem) / 14);
    svg.style.width = `${graph.width * Math.min(most, Math.max(least, fitting))}px`;
  }

  function about(here) {
    if (!here) {
      const leaves = graph.nodes.filter(({ leaf }) => leaf);
      return [
        el("p", {}, "Only the inputs have values; no operation has run yet."),
        ...leaves.map(({ name, value }) => fromNested(name, value)),
      ];
    }
    const one = here.node,
      [forward, ...gradients] = one.formula;
    if (!here.back) {
      return [
        el("p", {}, el("strong", {}, one.name)),
        ...(forward ? [formula([forward])] : []),
        ...(Array.isArray(one.value) ? [] : [result(one)]),
        ...one.inputs.map((key) => fromNested(node(key).name, node(key).value)),
        fromNested(`${one.name}, the result`, one.value),
      ];
    }
    return [
      el("p", {}, el("strong", {}, one.name), ", gradients of its inputs"),
      ...(forward ? [formula([forward, ...gradients])] : []),
      el(
        "p",
        {},
        "The gradient of its output is complete",
        ...(Array.isArray(one.gradient) ? [] : [": g = ", el("b", { class: "gradient" }, number(one.gradient))]),
        ".",
      ),
      el("ul", {}, ...one.returned.flatMap((g, i) => (Array.isArray(g) ? [] : [returned(g, one.inputs[i])]))),
      ...[...new Set(one.inputs)].flatMap((key) => sum(one, key)),
      fromNested("g, the gradient that arrives", one.gradient),
      ...one.returned.flatMap((g, i) => (g === null ? [] : [fromNested(`to ${node(one.inputs[i]).name}`, g)])),
      source(one),
    ];
  }

  // Returns a sentence with the numbers of an operation, or matrices for lists.
  function result(one) {
    const inputs = one.inputs.map((key) => `${node(key).name} = ${brief(node(key).value, 40)}`).join(", ");
    return el("p", {}, `${inputs} gives `, el("b", { class: "value" }, number(one.value)), ".");
  }

  const returned = (g, key) =>
    el("li", {}, `to ${node(key).name}: `, el("b", { class: "returned" }, g === null ? "none" : number(g)));

  // Returns the sum of the gradients of an input that is used more than once, as the chain rule requires.
  function sum(one, key) {
    const back = at - forward().length,
      terms = [graph.sums[back - 1][key], ...one.returned.filter((_, i) => one.inputs[i] === key)].filter((g) => g != null);
    if (terms.length < 2) return [];
    const [{ name }, total] = [node(key), graph.sums[back][key]],
      rule = `${name} is used more than once, so its gradients add up`;
    if (Array.isArray(total)) return [fromNested(`${rule} to`, total)];
    return [el("p", { class: "sum" }, `${rule}: ${terms.map(number).join(" + ")} = `, el("b", {}, number(total)), ".")];
  }

  // Returns the source code of a step. It is collapsed at first; if it is opened, it stays open in later steps.
  function source(one) {
    const details = collapsible("In the engine: source code and memory", () => {
      const handling = one.accumulation.map((how, i) => `to ${node(one.inputs[i]).name}: ${how}`).join("; ");
      return el(
        "div",
        {},
        el("pre", { tabindex: 0, "aria-label": "source code of the vjp" }, one.source),
        el("p", { class: "soft" }, `${one.saved} bytes are saved for the backward pass. Gradients ${handling}.`),
      );
    });
    details.open = isSourceOpen;
    details.addEventListener("toggle", () => (isSourceOpen = details.open));
    return details;
  }

  function numbers() {
    if (!graph) return el("p", {}, "No graph.");
    return table(
      "Nodes, inputs first",
      ["node", "from", "value", "gradient so far"],
      graph.nodes.map((one) => {
        const { value, gradient } = known(one);
        return [
          `${one.key} ${one.name}`,
          one.inputs.join(", "),
          value === null ? "?" : number(value),
          number(gradient),
        ];
      }),
    );
  }

  document.addEventListener("shown", ({ detail }) => {
    if (detail !== "step" || requests) return;
    if (!recorded) return load();
    graph = recorded.answers.step;
    draw();
  });
}
