// Model: Figure 1 of the paper for the loaded run. Every block shows its output for one sentence, or the gradient of
// its output; a block opens to its matrices (block.js). ← and → walk through the forward and the backward pass, ↑ and ↓
// move between the blocks of a stack, Enter opens a block and Escape closes it.
// Blocks are fetched while the browser is idle, so that they open without waiting for the server.
import { ask, el, number, rounded, stepByKeys, unit } from "./parts.js";
import { thumbnail } from "./matrix.js";
import { introduction } from "./introduction.js";
import { openBlock } from "./block.js";

const MOST_CHIPS = 12; // tokens in the figure; those that do not fit are hidden
const STACKS = { encoder: "Encoder", decoder: "Decoder", text: "Decoder only" };
const isNarrow = () => matchMedia("(max-width: 60rem)").matches; // the panel is below the figure (page.css)
const whenIdle = (work) => (window.requestIdleCallback ?? setTimeout)(work);

export function start(section, about) {
  if (!about.model) return section.append(el("p", { class: "error" }, about.unavailable_reason));
  const { blocks, layers } = about.model;
  let layer = 0,
    backward = false,
    at = null, // index in `walk`
    flow = null, // values and gradients of all blocks
    answer = null,
    fetched = new Map(), // blocks of `answer`, as promises, by name and head
    head = 0,
    playing = null;
  const walk = [...blocks.map(({ name }) => [name, false]), ...blocks.map(({ name }) => [name, true]).reverse()];
  const block = (name) => blocks.find((one) => one.name === name);

  const layerButtons = Array.from({ length: layers }, (_, i) =>
    el("button", { type: "button", onclick: () => choose({ layer: i }) }, String(i)),
  );
  const directions = ["Forward: values", "Backward: gradients"].map((name, i) =>
    el(
      "button",
      { type: "button", class: i ? "backward" : "forward", onclick: () => choose({ backward: i === 1 }) },
      name,
    ),
  );
  const moves = [
    ["⇤", "First", -Infinity],
    ["←", "Previous", -1],
    ["→", "Next", 1],
    ["⇥", "Last", Infinity],
  ].map(([sign, name, by]) => el("button", { type: "button", "aria-label": name, onclick: () => go(by) }, sign));
  const play = el("button", { type: "button", class: "play", onclick: () => (playing ? stop() : begin()) }, "▶ Play");
  const place = el("output", { class: "place", "aria-live": "polite" });
  const figure = el("div", { class: "figure" });
  const panel = el("div", { class: "opened", tabindex: -1 });
  section.append(
    el(
      "div",
      { class: "row controls" },
      el("div", { class: "group", role: "group", "aria-label": "Direction" }, ...directions),
      el(
        "div",
        { class: "group", role: "group", "aria-label": "Layer shown" },
        el("span", {}, "Layer"),
        ...layerButtons,
      ),
      el("div", { class: "group", role: "group", "aria-label": "Walk through the passes" }, ...moves, play),
      place,
    ),
    el("div", { class: "whole" }, el("div", { class: "scroller" }, figure), panel),
  );
  stepByKeys(section, go);
  document.addEventListener("keydown", (event) => {
    if (section.hidden || event.target.matches("input, select, textarea")) return;
    if (event.key === "Escape" && at !== null) close();
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key],
      stack = event.target.closest(".block") && [...event.target.closest(".stack").querySelectorAll(".block")];
    if (!by || !stack) return;
    event.preventDefault();
    const next = stack[stack.indexOf(event.target) + by]?.dataset.block;
    if (next && at !== null) visit(find(next, backward));
    if (next) focusBlock(next);
  });
  new ResizeObserver(() => connect()).observe(figure);

  document.addEventListener("translated", ({ detail }) => {
    answer = detail.answer;
    flow = null;
    fetched = new Map();
    if (answer && !section.hidden) load();
    if (!answer) close();
  });
  document.addEventListener("shown", ({ detail }) => {
    if (detail !== "model") stop();
    else if (answer && !flow) load();
    else connect();
  });

  async function load() {
    draw();
    const id = answer.translation,
      loaded = await ask("api/flow", { translation: id });
    if (answer?.translation !== id) return;
    if (loaded.error) return panel.replaceChildren(el("p", { class: "error", role: "alert" }, loaded.error));
    flow = loaded;
    draw();
    if (at === null || !fetched.has(keyOf(walk[at][0]))) open();
    section.dataset.flow = Math.round(performance.now());
    whenIdle(fetchAhead);
  }

  const headOf = (name) => (block(name).kind === "attention" ? head : 0);
  const keyOf = (name) => `${name} ${headOf(name)}`;

  function fetchBlock(name) {
    const blocks = fetched,
      key = keyOf(name);
    if (!blocks.has(key)) {
      const loading = ask("api/block", { translation: answer.translation, block: name, head: headOf(name) });
      blocks.set(key, loading);
      loading.then(({ error }) => error && blocks.delete(key));
    }
    return blocks.get(key);
  }

  // Fetches, one after the other, the blocks that are shown and not yet fetched.
  async function fetchAhead() {
    const next = [...figure.querySelectorAll(".block")].findLast((one) => !fetched.has(keyOf(one.dataset.block)));
    if (!next || !flow || section.hidden) return;
    const { error } = await fetchBlock(next.dataset.block);
    if (!error) whenIdle(fetchAhead);
  }

  function choose(change) {
    if ("layer" in change) {
      layer = change.layer;
      if (at !== null && block(walk[at][0]).layer !== null) {
        const { name, layer: of } = block(walk[at][0]);
        at = find(name.replace(`.${of}.`, `.${layer}.`), backward);
      }
    }
    if ("backward" in change) {
      backward = change.backward;
      if (at !== null) at = find(walk[at][0], backward);
    }
    draw();
    open();
  }

  const find = (name, back) => walk.findIndex((one) => one[0] === name && one[1] === back);

  function go(by) {
    const follows = document.activeElement === document.body || document.activeElement.matches(".block");
    visit(at === null && by === 1 ? 0 : Math.min(walk.length - 1, Math.max(0, (at ?? 0) + by)));
    if (follows) return focusBlock(walk[at][0]);
    const isReading = isNarrow() && panel.getBoundingClientRect().top < innerHeight / 2;
    if (isReading) panel.scrollIntoView({ block: "start" });
    else figure.querySelector(".block[aria-pressed=true]").scrollIntoView({ block: "nearest" });
  }

  // Opens the block at a place of the walk.
  function visit(place) {
    at = place;
    const [name, back] = walk[at],
      of = block(name).layer ?? layer;
    const same = back === backward && of === layer;
    [backward, layer] = [back, of];
    if (same) mark();
    else draw();
    open();
  }

  function focusBlock(name) {
    const button = figure.querySelector(`[data-block="${name}"]`);
    button?.focus({ preventScroll: true });
    button?.scrollIntoView({ block: "nearest" });
  }

  function close() {
    const name = at !== null && walk[at][0];
    stop();
    at = null;
    draw();
    open();
    if (name && answer) focusBlock(name);
  }

  // Marks the open block, without drawing the figure again.
  function mark() {
    for (const button of figure.querySelectorAll(".block"))
      button.setAttribute("aria-pressed", String(at !== null && walk[at][0] === button.dataset.block));
    place.textContent =
      at === null ? "← → walk through all blocks, ↑ ↓ move, Enter opens" : `${at + 1} of ${walk.length}, ${titleOf(walk[at][0])}`;
  }

  function begin() {
    if (at === walk.length - 1) at = null;
    go(1);
    playing = setInterval(() => {
      if (at === walk.length - 1) return stop();
      go(1);
    }, 1200);
    play.textContent = "Pause";
    section.classList.add("is-playing");
  }

  function stop() {
    if (!playing) return;
    clearInterval(playing);
    playing = null;
    play.textContent = "▶ Play";
    section.classList.remove("is-playing");
  }

  // ---- the figure

  function draw() {
    const focused = document.activeElement?.dataset?.block;
    directions.forEach((button, i) => button.setAttribute("aria-pressed", backward === (i === 1)));
    layerButtons.forEach((button, i) => button.setAttribute("aria-pressed", layer === i));
    section.classList.toggle("is-backward", backward);
    const stacks = [...new Set(blocks.map((one) => one.stack))];
    figure.replaceChildren(el("svg", { class: "arrows", "aria-hidden": "true" }), ...stacks.map(stack));
    figure.style.setProperty("--stacks", stacks.length);
    figure.style.setProperty("--tall", Math.max(...stacks.map(height)));
    if (focused) figure.querySelector(`[data-block="${focused}"]`)?.focus({ preventScroll: true });
    mark();
    connect();
    if (flow) whenIdle(fetchAhead);
  }

  // Of the blocks of a stack that are shown, in units of one block; sums are drawn on one line.
  function height(name) {
    const shown = blocks.filter((one) => one.stack === name && (one.layer === null || one.layer === layer));
    return shown.reduce((sum, { kind }) => sum + (kind === "residual" || kind === "norm" ? 0.6 : 1), 0);
  }

  function titleOf(name) {
    const { title, stack, layer: of } = block(name);
    return `${title}, ${STACKS[stack].toLowerCase()}${of === null ? "" : ` layer ${of}`}`;
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
      { class: "stack" },
      el("h3", {}, STACKS[name]),
      ...(last ? [tokens("Output probabilities", answer?.target ?? [], answer?.p)] : []),
      ...after.map(button).reverse(),
      el(
        "div",
        { class: "layer", "data-stack": name },
        el("span", { class: "times" }, `Layer ${layer}, × ${layers}`),
        ...inLayer.map(button).reverse(),
      ),
      ...before.map(button),
      tokens(name === "encoder" ? "Inputs" : name === "text" ? "Text" : "Outputs, shifted right", inputs),
    );
  }

  function tokens(title, labels, p) {
    const chips = labels.slice(0, MOST_CHIPS).map((label, i) => {
      const chip = el("span", { class: "chip" }, label);
      if (p) chip.title = `probability ${p[i].toFixed(4)}`;
      return chip;
    });
    const count = labels.length ? ` (${labels.length})` : "";
    return el("p", { class: "chips" }, el("b", {}, `${title}${count}`), ...chips);
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
        onclick: () => {
          stop();
          visit(find(one.name, backward));
          if (isNarrow()) panel.scrollIntoView({ block: "start" });
        },
      },
      el(
        "span",
        { class: "what" },
        el("b", { class: "name" }, one.title),
        el("small", {}, el("span", { class: "size count" }, `${rounded(one.parameters)}${seen ? " · " : ""}`), ...(seen ? facts(one, seen) : [])),
      ),
      seen ? thumbnail(backward ? seen.gradient : seen.value) : "",
    );
  }

  function facts(one, seen) {
    const size = backward ? seen.gradient_norm : seen.norm;
    const norm = backward && size < 0.1 ? size.toExponential(1) : number(Number(size.toPrecision(3)));
    const of = one.kind === "output" ? "h" : "y"; // the output block shows its input
    const name = backward ? `‖∂${of}‖` : `‖${of}‖`;
    return [
      el("span", { class: "size" }, backward ? "" : `${seen.shape.join(" × ")} · `),
      el("span", { class: backward ? "backward" : "forward" }, `${name} ${norm}`),
    ];
  }

  // Arrows between the blocks that are shown, measured where they are.
  function connect() {
    const svg = figure.querySelector(".arrows");
    if (!svg || !figure.clientWidth) return;
    const origin = figure.getBoundingClientRect();
    const at = (element) => {
      const { left, right, top, bottom } = element.getBoundingClientRect();
      return {
        x: (left + right) / 2 - origin.left,
        left: left - origin.left,
        top: top - origin.top,
        bottom: bottom - origin.top,
      };
    };
    const paths = [],
      px = unit();
    for (const column of figure.querySelectorAll(".stack")) {
      const chain = [...column.querySelectorAll(".chips, .block")]
        .reverse()
        .map((element) => ({ element, ...at(element) }));
      chain.slice(1).forEach((to, i) => {
        const from = chain[i];
        paths.push(["main", `M${from.x} ${from.top} L${to.x} ${to.bottom}`]);
        if (to.element.classList.contains("residual")) {
          const source = chain[i - 1],
            gutter = to.left - 14 * px,
            low = (source.top + from.bottom) / 2;
          paths.push([
            "skip",
            `M${to.x} ${low} L${gutter} ${low} L${gutter} ${(to.top + to.bottom) / 2} L${to.left} ${(to.top + to.bottom) / 2}`,
          ]);
        }
      });
    }
    const memory = figure.querySelector('[data-stack="encoder"]'),
      cross = [...figure.querySelectorAll(".block.attention")].find((one) =>
        one.dataset.block.includes("cross_attention"),
      );
    if (memory && cross) {
      const [from, to] = [at(memory), at(cross)],
        rect = memory.getBoundingClientRect(),
        right = rect.right - origin.left,
        middle = (to.top + to.bottom) / 2;
      if (to.left > right) {
        const lane = right + 10 * px;
        paths.push([
          "main",
          `M${from.x} ${from.top} L${from.x} ${from.top - 14 * px} L${lane} ${from.top - 14 * px} L${lane} ${middle} L${to.left} ${middle}`,
        ]);
      }
    }
    svg.setAttribute("viewBox", `0 0 ${figure.clientWidth} ${figure.clientHeight}`);
    const drawn = paths.map(([kind, d]) => el("path", { d, class: `arrow ${kind}` }));
    svg.replaceChildren(...drawn, ...paths.map(([, d]) => el("path", { d: tip(d, backward), class: "tip" })));
  }

  // The tip of an arrow along a path of straight lines: at its end, or at its start for the backward pass.
  function tip(d, atStart) {
    const points = [...d.matchAll(/[ML]([\d.-]+) ([\d.-]+)/g)].map(([, x, y]) => [Number(x), Number(y)]);
    if (atStart) points.reverse();
    const [[px, py], [x, y]] = points.slice(-2),
      length = Math.hypot(x - px, y - py) || 1,
      size = (6 * unit()) / length,
      [dx, dy] = [size * (x - px), size * (y - py)];
    return `M${x} ${y} L${x - dx - dy * 0.7} ${y - dy + dx * 0.7} L${x - dx + dy * 0.7} ${y - dy - dx * 0.7} Z`;
  }

  // ---- the open block

  async function open() {
    if (at === null || !answer) return show("", introduction(about.model, answer, flow, backward, () => go(1)));
    const name = walk[at][0],
      id = answer.translation;
    const loaded = await fetchBlock(name);
    if (at === null || walk[at][0] !== name || answer?.translation !== id) return;
    if (loaded.error) return panel.replaceChildren(el("p", { class: "error", role: "alert" }, loaded.error));
    const next = walk[at + 1],
      forth = () => {
        stop();
        go(1);
      };
    const steps = el(
      "p",
      { class: "row" },
      next
        ? el("button", { type: "button", class: "primary", onclick: forth }, `Next: ${next[1] === walk[at][1] ? titleOf(next[0]) : "backward pass"} →`)
        : "",
      el("button", { type: "button", onclick: close }, "✕ Close (Esc)"),
    );
    const choose = async (chosen) => {
      head = chosen;
      await open();
      panel.querySelector('[aria-label="Head"] [aria-pressed="true"]')?.focus({ preventScroll: true });
    };
    show(`${id} ${name}`, openBlock(block(name), titleOf, loaded, backward, choose, steps));
    panel.dataset.block = name;
  }

  // Fills the panel, scrolls it to its start if it showed something else, and keeps the focus in it.
  function show(content, elements) {
    const hadFocus = panel.contains(document.activeElement);
    panel.replaceChildren(...elements);
    if (panel.dataset.content !== content) panel.scrollTop = 0;
    panel.dataset.content = content;
    delete panel.dataset.block;
    if (hadFocus) (panel.querySelector("button.primary") ?? panel).focus({ preventScroll: true });
  }

  draw();
  open();
}
