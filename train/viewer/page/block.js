// An open block of the model: what it does, its formula, its matrices or their gradients, and its parameters.
import { collapsible, el, moveByKeys, number, table } from "./parts.js";
import { floats, matrix } from "./matrix.js";

// What a block does, in plain words.
function explain({ title, kind, stack }) {
  if (kind === "attention") {
    if (title.startsWith("Cross"))
      return "Each output token reads the source: its query comes from the decoder, keys and values from the encoder.";
    const whom = stack === "encoder" ? "every token" : "itself and the tokens before it; those after it are masked";
    return `Each token compares its query with the keys of ${whom}. The softmax of these scores weights their values.`;
  }
  return {
    embedding: "Each token becomes a vector, its row of the embedding table, to which its position is added.",
    feed_forward: "Each token by itself: a wider hidden layer, an activation, and back to the width of the model.",
    residual:
      "The output of the sub-layer is added to its input, so that each sub-layer only learns a change" +
      (title.includes("norm") ? "; each row is then scaled to a common size." : "."),
    norm: "Each row is scaled to a common size, and then by learned factors.",
    output:
      "Each row is compared with every token of the vocabulary; the softmax gives the next token's probabilities.",
  }[kind];
}

export function openBlock(about, titleOf, block, backward, chooseHead, steps) {
  const decoded = block.matrices.map((one) => {
    let values = null; // decoded when they are shown
    return {
      ...one,
      get values() {
        return (values ??= floats(one.values));
      },
    };
  });
  // the weights or probabilities first, then how they come about
  const inOrder = [...decoded].sort((a, b) => Boolean(b.unit) - Boolean(a.unit));
  const shown = inOrder.map((one) => show(one, decoded, backward));
  const small = (x) => number(Number(x.toPrecision(3)));
  return [
    el("h3", {}, titleOf(block.block)),
    el("p", {}, explain(about) ?? ""),
    ...steps,
    ...(block.formula ? [el("p", { class: "formula" }, block.formula)] : []),
    ...(backward
      ? [
          el(
            "p",
            {},
            about.kind === "output"
              ? "Gradient in: 1, that of the loss with respect to itself. Gradient out: norm "
              : `Gradient in: norm ${small(block.arriving)}, of the output. Gradient out: `,
            block.leaving.length
              ? block.leaving.map(([to, norm]) => `${small(norm)} to ${titleOf(to)}`).join("; ")
              : "to the embedding table",
            ".",
          ),
        ]
      : []),
    ...(block.note ? [el("p", { class: "soft" }, block.note)] : []),
    ...(block.heads > 1 ? [heads(block, chooseHead)] : []),
    ...(block.bars ? [distribution(block)] : []),
    el("div", { class: "matrices" }, ...shown),
    collapsible("Parameters", () =>
      table(
        "Norms of the weights and of their gradients",
        ["name", "shape", "values", "norm", "gradient norm"],
        block.parameters.map(([name, shape, size, norm, gradient]) => [
          name,
          shape.join(" × "),
          size.toLocaleString("en"),
          small(norm),
          small(gradient),
        ]),
      ),
    ),
  ];
}

function show(one, all, backward) {
  const of = { rows: one.rows, columns: one.columns, masked: one.masked };
  if (!backward)
    return matrix({
      ...of,
      title: one.title,
      values: one.values,
      most: one.unit ? 1 : undefined,
      about: arithmetic(one, all),
    });
  if (one.gradient) return matrix({ ...of, title: `∂ ${one.title}`, values: floats(one.gradient) });
  return el("figure", { class: "matrix" }, el("figcaption", {}, el("b", {}, one.title), ": gradient not shown"));
}

// How a score becomes a weight, for the cell under the pointer.
function arithmetic(one, all) {
  const named = (start) => all.find(({ title }) => title.startsWith(start));
  const [scores, scaled, weights] = ["scores q kᵀ", "scores / √d_k", "weights"].map(named);
  if (!weights || ![scores, scaled, weights].includes(one)) return () => "";
  return (i, j) => {
    const cell = i * one.columns.length + j,
      value = (from) => (from.values[cell] === -Infinity ? "−∞" : number(from.values[cell]));
    const plus = scaled.title.includes("mask") ? " + mask" : "";
    return `  (q·k = ${value(scores)}, / √d_k${plus} = ${value(scaled)}, softmax = ${value(weights)})`;
  };
}

function heads({ heads: count, head, off }, choose) {
  const buttons = Array.from({ length: count }, (_, h) =>
    el(
      "button",
      { type: "button", "aria-pressed": String(h === head), tabindex: h === head ? 0 : -1, onclick: () => choose(h) },
      off.includes(h) ? `${h} off` : `${h}`,
    ),
  );
  const group = el("div", { class: "group", role: "group", "aria-label": "Head" }, el("span", {}, "Head"), ...buttons);
  moveByKeys(group, buttons, count);
  return group;
}

// The ten most probable tokens at a position that can be chosen.
function distribution({ bars, targets }) {
  const list = el("ul", { class: "share" });
  const choice = el("select", {}, ...targets.map((target, t) => el("option", { value: t }, `${t + 1}: ${target}`)));
  const draw = () =>
    list.replaceChildren(
      ...bars[choice.value].map(([label, p, right]) => {
        const fill = el("span", { class: "fill" });
        fill.style.width = `${100 * p}%`;
        return el(
          "li",
          { class: right ? "target" : "" },
          el("span", {}, label),
          el("span", { class: "track" }, fill),
          el("span", {}, p.toFixed(4)),
        );
      }),
    );
  choice.addEventListener("change", draw);
  draw();
  return el("div", {}, el("p", { class: "row" }, el("label", {}, "Probabilities at position ", choice)), list);
}
