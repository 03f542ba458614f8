// The figure of the Model view, like Figure 1 of the paper: for each stack, the blocks of one layer and of what comes
// before and after it, with arrows. The other layers are drawn as one box above and one box below that layer.
import { el, number, rounded, unit } from "./parts.js";
import { thumbnail } from "./matrix.js";

// Returns the block of a head such as "cross.0.3". The kind of a head is the name of a stack, or "cross".
export function blockOf(head) {
  const [kind, layer] = head.split("."),
    stack = { cross: "decoder", text: "layers" }[kind] ?? kind;
  return `${stack}.${layer}.${kind === "cross" ? "cross_attention" : "attention"}`;
}

const STACKS = { encoder: "Encoder", decoder: "Decoder", text: "Decoder only" };
const isEncoder = (task) => task === "classification" || task === "tagging";
export const stackName = (stack, task) => (stack === "text" && isEncoder(task) ? "Encoder only" : STACKS[stack]);

// Returns {figure, draw, connect}. `draw` takes {answer, flow, layer, backward}; `answer` and `flow` may be null.
// `select` is called with the name of the block that the user clicks.
export function modelFigure({ blocks, layers, task, vocabulary }, select) {
  const figure = el("div", { class: "figure" });
  let answer, flow, layer, backward;
  new ResizeObserver(() => connect()).observe(figure);

  function draw(state) {
    ({ answer, flow, layer, backward } = state);
    const focused = document.activeElement?.dataset?.block;
    const stacks = [...new Set(blocks.map((one) => one.stack))];
    figure.replaceChildren(el("svg", { class: "arrows", "aria-hidden": "true" }), ...stacks.map(stack));
    figure.style.setProperty("--stacks", stacks.length);
    figure.style.setProperty("--tall", Math.max(...stacks.map(height)));
    figure.style.setProperty("--others", (layer > 0) + (layer < layers - 1));
    if (focused) figure.querySelector(`[data-block="${focused}"]`)?.focus({ preventScroll: true });
    connect();
  }

  // As in the paper, a decoder with an encoder has its residual connections on the right, so that the arrow from the
  // encoder does not cross them.
  const isOnTheRight = (name) => name === "decoder" && blocks.some((one) => one.stack === "encoder");

  // Returns the height of the visible blocks of a stack, in blocks; sums and norms take only one line.
  function height(name) {
    const shown = blocks.filter((one) => one.stack === name && (one.layer === null || one.layer === layer));
    return shown.reduce((sum, { kind }) => sum + (kind === "residual" || kind === "norm" ? 0.6 : 1), 0);
  }

  function stack(name) {
    const all = blocks.filter((one) => one.stack === name);
    const inLayer = all.filter((one) => one.layer === layer),
      before = all.filter((one) => one.kind === "embedding"),
      after = all.filter((one) => one.layer === null && one.kind !== "embedding");
    const last = name !== "encoder";
    const inputs = answer ? (name === "encoder" ? answer.source : answer.decoder_input) : [];
    return el(
      "div",
      { class: isOnTheRight(name) ? "stack mirrored" : "stack" },
      el("h3", {}, stackName(name, task)),
      ...(last ? [tokens(isEncoder(task) ? "Labels" : "Output probabilities", answer?.target ?? [], answer?.p)] : []),
      ...after.map(button).reverse(),
      ...others(layer + 1, layers - 1),
      el(
        "div",
        { class: "layer", "data-stack": name },
        el("span", { class: "times" }, `Layer ${layer}, × ${layers}`),
        ...inLayer.map(button).reverse(),
      ),
      ...others(0, layer - 1),
      ...before.map(button),
      tokens(name === "encoder" ? "Inputs" : name === "text" ? "Text" : "Outputs, shifted right", inputs),
    );
  }

  // Returns a box for the layers `from` to `to`, which are hidden; the arrows pass through this box.
  function others(from, to) {
    if (to < from) return [];
    return [el("p", { class: "others" }, from === to ? `layer ${from}` : `layers ${from} to ${to}`)];
  }

  function tokens(title, labels, p) {
    const chips = labels.map((label, i) => {
      const chip = el("span", { class: "chip" }, label);
      if (p) chip.title = `probability ${p[i].toFixed(4)}`;
      return chip;
    });
    const count = labels.length ? ` (${labels.length})` : "";
    return el("p", { class: "chips", title: labels.join(" ") }, el("b", {}, `${title}${count}`), ...chips);
  }

  function button(one) {
    const seen = flow?.blocks[one.name];
    return el(
      "button",
      {
        type: "button",
        class: `block ${one.kind}`,
        "data-block": one.name,
        title: `${one.parameters.toLocaleString("en")} parameters`,
        disabled: !answer,
        onclick: () => select(one.name),
      },
      el(
        "span",
        { class: "what" },
        el("b", { class: "name" }, one.title),
        el("small", {}, ...ablated(one), ...(seen ? facts(one, seen) : [])),
      ),
      seen ? thumbnail(backward ? seen.gradient : seen.value) : "",
    );
  }

  // Returns the ablated heads of a block, or its number of parameters.
  function ablated({ name, parameters }) {
    const off = (answer?.ablated_heads ?? []).filter((head) => blockOf(head) === name).map((head) => head.split(".")[2]);
    if (!off.length) return [el("span", { class: "size count" }, `${rounded(parameters)}${flow ? " · " : ""}`)];
    const names = off.length === 1 ? `head ${off} ablated` : `${off.length} heads ablated`;
    return [el("b", { class: "off" }, names), flow ? " · " : ""];
  }

  function facts(one, seen) {
    const size = backward ? seen.gradient_norm : seen.norm;
    const norm = number(Number(size.toPrecision(backward && size < 0.1 ? 2 : 3))); // in one line
    // the output block shows its input h and the gradient that it passes back; the others show their output
    const name = one.kind === "output" ? (backward ? "to input ‖∂h‖" : "input ‖h‖") : backward ? "‖∂y‖" : "‖y‖";
    const [rows, width] = seen.shape, // of the input of the output block
      columns = one.kind === "output" && !isEncoder(task) ? vocabulary.toLocaleString("en") : width;
    return [
      el("span", { class: "size" }, backward ? "" : `${rows} × ${columns} · `),
      el("span", { class: backward ? "backward" : "forward" }, `${name} ${norm}`),
    ];
  }

  // Draws arrows between the visible blocks, from their positions on the page.
  function connect() {
    const svg = figure.querySelector(".arrows");
    if (!svg || !figure.clientWidth) return;
    const origin = figure.getBoundingClientRect();
    const at = (element) => {
      const { left, right, top, bottom } = element.getBoundingClientRect();
      return {
        x: (left + right) / 2 - origin.left,
        left: left - origin.left,
        right: right - origin.left,
        top: top - origin.top,
        bottom: bottom - origin.top,
      };
    };
    const paths = [],
      px = unit();
    for (const column of figure.querySelectorAll(".stack")) {
      const chain = [...column.querySelectorAll(".chips, .block, .others")]
        .reverse()
        .map((element) => ({ element, ...at(element) }));
      const isMirrored = column.classList.contains("mirrored");
      chain.slice(1).forEach((to, i) => {
        const from = chain[i];
        paths.push(["main", line([from.x, from.top], [to.x, to.bottom])]);
        if (to.element.classList.contains("residual")) {
          const edge = isMirrored ? to.right : to.left,
            gutter = edge + (isMirrored ? 14 : -14) * px,
            low = Math.min(chain[i - 1].top - 2 * px, from.bottom + 8 * px), // below the tip of the arrow
            middle = (to.top + to.bottom) / 2;
          paths.push(["skip", line([to.x, low], [gutter, low], [gutter, middle], [edge, middle])]);
        }
      });
    }
    // the output of the encoder leaves the top of its stack, whichever layer is shown
    const memory = figure.querySelector(".stack:has([data-stack=encoder]) > :is(.block, .others, .layer)"),
      cross = [...figure.querySelectorAll(".block.attention")].find((one) =>
        one.dataset.block.includes("cross_attention"),
      );
    if (memory && cross) {
      const from = { ...at(memory), x: at(figure.querySelector("[data-stack=encoder] .block")).x }, // a layer is wider
        to = at(cross),
        { right } = at(figure.querySelector("[data-stack=encoder]")),
        { left } = at(cross.closest(".layer")),
        middle = (to.top + to.bottom) / 2;
      if (left > right) {
        const lane = (left + right) / 2,
          high = from.top - 14 * px;
        paths.push(["main", line([from.x, from.top], [from.x, high], [lane, high], [lane, middle], [to.left, middle])]);
      }
    }
    svg.setAttribute("viewBox", `0 0 ${figure.clientWidth} ${figure.clientHeight}`);
    const drawn = paths.map(([kind, d]) => el("path", { d, class: `arrow ${kind}` }));
    svg.replaceChildren(...drawn, ...paths.map(([, d]) => el("path", { d: tip(d, backward), class: "tip" })));
  }

  const line = (...points) => `M${points.map(([x, y]) => `${x} ${y}`).join(" L")}`;

  // Returns the tip of an arrow along a path of straight lines: at the end, or in the backward pass at the start.
  function tip(d, atStart) {
    const points = [...d.matchAll(/[ML]([\d.-]+) ([\d.-]+)/g)].map(([, x, y]) => [Number(x), Number(y)]);
    if (atStart) points.reverse();
    const [[px, py], [x, y]] = points.slice(-2),
      length = Math.hypot(x - px, y - py) || 1,
      size = (6 * unit()) / length,
      [dx, dy] = [size * (x - px), size * (y - py)];
    return `M${x} ${y} L${x - dx - dy * 0.7} ${y - dy + dx * 0.7} L${x - dx + dy * 0.7} ${y - dy - dx * 0.7} Z`;
  }

  return { figure, draw, connect };
}
