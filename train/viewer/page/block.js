// An open block of the model: what it does, its formula, its matrices or their gradients, and its parameters.
import { collapsible, el, fixed, formula, moveByKeys, number, recorded, table, typeset } from "./parts.js";
import { floats, matrix } from "./matrix.js";

// `actions`: `choose(head)` shows another head, `ablate(head)` ablates or restores one and runs again, and `hasHead(head)`
// is false for a head that a saved page does not have.
export function openBlock(titleOf, block, backward, actions, steps) {
  const decoded = block.matrices.map((one) => {
    let values = null; // decoded when they are shown
    return {
      ...one,
      get values() {
        return (values ??= floats(one.values));
      },
    };
  });
  const aligned = [...new Set(decoded.flatMap(({ rows }) => rows))];
  // the matrices are in the order of computation, except that weights or probabilities come first
  const [first, ...others] = backward
    ? decoded.flatMap((one) => showGradient(one, aligned)).reverse()
    : decoded.toSorted((a, b) => Boolean(b.unit) - Boolean(a.unit)).map((one) => showValues(one, decoded, aligned));
  const small = (x) => number(Number(x.toPrecision(3)));
  const [text, lines] = backward ? [block.backward, block.gradients] : [block.text, block.formulas];
  // the first matrix comes before its explanation, so that it is visible without scrolling
  return [
    el("div", { class: "heading" }, el("h3", {}, titleOf(block.block)), ...steps),
    ...(text ? [el("p", { class: "about" }, ...typeset(text))] : []),
    ...(block.heads ? [heads(block, actions)] : []),
    el("div", { class: "lead" }, el("div", { class: "matrices" }, first), ...(lines?.length ? [formula(lines)] : [])),
    ...(backward ? [el("p", {}, flowOfGradients(block, titleOf, small))] : []),
    ...(block.note ? [el("p", { class: "soft" }, ...typeset(block.note))] : []),
    ...(block.bars ? [distribution(block)] : []),
    el("div", { class: "matrices" }, ...others),
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

// Returns a text with the norms of the gradients that arrive at a block and leave it.
function flowOfGradients({ block, arriving, leaving }, titleOf, small) {
  const start =
    block === "output"
      ? "Gradient in: 1, the derivative of the loss with respect to itself. Gradient out: norm "
      : `Gradient in: norm ${small(arriving)}, with respect to the output. Gradient out: `;
  const to = leaving.map(([name, norm]) => `${small(norm)} to ${titleOf(name)}`).join("; ");
  return `${start}${to || "to the embedding table"}.`;
}

const labels = ({ rows, columns, masked }) => ({ rows, columns, masked });

function showValues(one, all, aligned) {
  const { title, values, unit } = one;
  const [caption, about] = [typeset(title), arithmetic(one, all)];
  return matrix({ ...labels(one), aligned, title, caption, values, most: unit ? 1 : undefined, about });
}

// Returns the gradient of a matrix, or the reason why it has none, or nothing.
function showGradient(one, aligned) {
  const { title, gradient, without_gradient: reason } = one,
    named = `∂ ${title}`;
  if (gradient)
    return matrix({ ...labels(one), aligned, title: named, caption: typeset(named), values: floats(gradient) });
  if (!reason) return [];
  return el("figure", { class: "matrix" }, el("figcaption", {}, el("b", {}, title), reason));
}

// Shows how a score becomes a weight, for the cell under the pointer.
function arithmetic(one, all) {
  const named = (start) => all.find(({ title }) => title.startsWith(start));
  const [scores, scaled, weights] = ["scores q kᵀ", "scores / √d_k", "weights"].map(named);
  if (!weights || ![scores, scaled, weights].includes(one)) return () => "";
  return (i, j) => {
    const cell = i * one.columns.length + j,
      value = (from) => number(from.values[cell]);
    const plus = scaled.title.includes("mask") ? " + mask" : "";
    return `  (q·k = ${value(scores)}, q·k / √d_k${plus} = ${value(scaled)}, softmax = ${value(weights)})`;
  };
}

function heads({ heads: count, head, ablated_heads: off }, { choose, ablate, hasHead }) {
  const buttons = Array.from({ length: count }, (_, h) =>
    el(
      "button",
      {
        type: "button",
        "aria-pressed": String(h === head),
        tabindex: h === head ? 0 : -1,
        disabled: !hasHead(h),
        title: hasHead(h) ? "" : "not in this saved page",
        onclick: () => choose(h),
      },
      off.includes(h) ? `${h} off` : `${h}`,
    ),
  );
  const group = el("div", { class: "group", role: "group", "aria-label": "Head" }, el("span", {}, "Head"), ...buttons);
  moveByKeys(group, buttons, count);
  const name = `${off.includes(head) ? "Restore" : "Ablate"} head ${head} and run again`;
  const button = el("button", { type: "button", class: "ablate", onclick: () => ablate(head) }, name);
  return el("div", { class: "row" }, group, ...(recorded ? [] : [button]));
}

// Returns a list of the ten most probable tokens at a position that the user selects.
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
          el("span", {}, fixed(p)),
        );
      }),
    );
  choice.addEventListener("change", draw);
  draw();
  return el("div", {}, el("p", { class: "row" }, el("label", {}, "Probabilities at position ", choice)), list);
}
