// Model: Figure 1 of the paper for the loaded run (figure.js). Every block shows its output for one sentence, or the
// gradient of its output; an open block shows its matrices (block.js). ← and → walk through the forward and the backward
// pass, ↑ and ↓ move between the blocks of a stack, Enter opens a block and Escape closes it. Without a sentence, no
// block opens. Space, Page Down and Page Up, which a presenter's remote sends, scroll the open block and then open the
// next one. Blocks are fetched while the browser is idle, so that they open without waiting for the server. The address
// names the open block, as in #model/output/backward: a reload opens the block again, and Back closes it.
import { ask, el, isAnswerable, isPresenting, recorded, stepByKeys } from "./parts.js";
import { introduction } from "./introduction.js";
import { openBlock } from "./block.js";
import { modelFigure, stackName } from "./figure.js";

const PLAY = () => ["▶ Play", el("span", { class: "longer" }, " all")];
const PAUSE = () => ["Pause"];
const detail = (text) => el("span", { class: "detail" }, text); // hidden in a presentation without room for it
const SECONDS = 5; // for each block of the walk
const isNarrow = () => matchMedia("(max-width: 60rem)").matches; // the panel is below the figure (page.css)
const whenIdle = (work) => (window.requestIdleCallback ?? setTimeout)(work);

export function start(section, about) {
  const { blocks, layers } = about.model;
  let layer = 0,
    backward = false,
    at = null, // index in `walk`
    flow = null, // values and gradients of all blocks
    answer = null,
    toggle = null, // ablates or restores a head
    isShown = false,
    isAwaited = false, // whether the window scrolls to the open block once there is an answer
    closed = null, // the block that was closed by going back in the history
    fetched = new Map(), // blocks of `answer`, as promises, by name and head
    head = 0,
    playing = null;
  const walk = [...blocks.map(({ name }) => [name, false]), ...blocks.map(({ name }) => [name, true]).reverse()];
  const block = (name) => blocks.find((one) => one.name === name);

  const layerButtons = Array.from({ length: layers }, (_, i) =>
    el("button", { type: "button", onclick: () => choose({ layer: i }) }, String(i)),
  );
  const directions = [
    ["Forward", ": values"],
    ["Backward", ": gradients"],
  ].map(([name, what], i) =>
    el(
      "button",
      { type: "button", class: name.toLowerCase(), onclick: () => choose({ backward: i === 1 }) },
      name,
      detail(what),
    ),
  );
  const moves = [
    ["⇤", "First", -Infinity],
    ["←", "Previous", -1],
    ["→", "Next", 1],
    ["⇥", "Last", Infinity],
  ].map(([sign, name, by]) => el("button", { type: "button", "aria-label": name, onclick: () => go(by) }, sign));
  const play = el("button", { type: "button", class: "play", title: `${SECONDS} seconds per block`, onclick: () => (playing ? stop() : begin()) }, ...PLAY());
  const place = el("output", { class: "place", "aria-live": "polite" });
  const { figure, ...drawing } = modelFigure(about.model, (name) => {
    stop();
    visit(find(name, backward), isNarrow());
  });
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
    const { key, target, defaultPrevented } = event;
    if (section.hidden || defaultPrevented || target.matches("input, select, textarea")) return;
    if (key === "Escape" && at !== null) close();
    const pages = key === "PageUp" || (key === " " && event.shiftKey) ? -1 : key === "PageDown" || key === " " ? 1 : 0;
    const canTurn = at !== null || (pages === 1 && isPresenting()); // the first page of a presentation begins the walk
    if (pages && canTurn && answer && !isNarrow() && !(key === " " && isPressedBySpace(target))) {
      event.preventDefault();
      return turnPage(pages);
    }
    const by = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (!by || !answer || target.closest("header, #ask, .opened")) return;
    event.preventDefault();
    const next = beside(target.closest(".block") ?? figure.querySelector("[aria-pressed=true]"), by);
    if (next && at !== null) visit(find(next, backward));
    if (next) focusBlock(next);
  });

  const isPressedBySpace = (element) => element.matches("button:not(.block[aria-pressed=true]), a, summary");
  addEventListener("resize", focusPanel);

  // A presentation hides the figure, which had the focus.
  function focusPanel() {
    if (isPresenting() && at !== null && !section.hidden && document.activeElement.matches("body, .block, #present"))
      panel.focus({ preventScroll: true });
  }

  // Scrolls the open block by nearly its height; at its end (`by` is 1) or its start (-1), opens the block beyond it.
  function turnPage(by) {
    const { scrollTop, scrollHeight, clientHeight } = panel;
    if (by === 1 ? scrollTop + clientHeight < scrollHeight - 2 : scrollTop > 0)
      return panel.scrollBy({ top: by * 0.8 * clientHeight, behavior: "instant" });
    stop();
    go(by);
  }

  document.addEventListener("translated", ({ detail }) => {
    ({ answer, toggle } = detail);
    flow = null;
    fetched = new Map();
    if (!section.hidden) load();
  });
  document.addEventListener("shown", ({ detail }) => {
    const wasShown = isShown;
    isShown = detail === "model";
    if (!isShown) return stop();
    if (!recorded) follow(wasShown);
    if (answer && !flow) load();
    else drawing.connect();
  });

  // Opens the block of the address. An address without a block closes the open one, unless another view was shown.
  function follow(wasShown) {
    const [, name, pass] = location.hash.split("/"),
      place = find(name, pass === "backward");
    if (place >= 0 && place !== at) visit(place, isNarrow());
    else if (!name && at !== null && wasShown) close();
    else if (closed) focusBlock(closed); // going back has taken the focus
    else writeAddress();
    closed = null;
  }

  function writeAddress() {
    if (recorded || section.hidden) return;
    const [name, isBackward] = at === null ? ["", false] : walk[at];
    const [before, now] = [location.hash, `#model${name && `/${name}`}${isBackward ? "/backward" : ""}`];
    const hadBlock = before.includes("/");
    if (before === now || (!before && !name)) return;
    if (hadBlock && !name && history.state?.opened) {
      closed = before.split("/")[1];
      history.back();
    } else if (hadBlock || !name) history.replaceState(history.state, "", now);
    else history.pushState({ opened: true }, "", now);
  }

  // Returns the name of the block above (`by` is -1) or below (1) another one; without another one, the first or last.
  function beside(other, by) {
    if (!other) return blocks.at(by === 1 ? -1 : 0).name;
    const all = [...other.closest(".stack").querySelectorAll(".block")];
    return all[all.indexOf(other) + by]?.dataset.block;
  }

  async function load() {
    draw();
    const id = answer.translation,
      loaded = await ask("api/overview", { translation: id });
    if (answer?.translation !== id) return;
    if (loaded.error) return panel.replaceChildren(el("p", { class: "error", role: "alert" }, loaded.error));
    flow = loaded;
    draw();
    if (at === null || !fetched.has(keyOf(walk[at][0]))) open(isAwaited);
    section.dataset.flow = Math.round(performance.now());
    whenIdle(fetchAhead);
  }

  const question = (name, head) => ({ translation: answer.translation, block: name, head });
  const hasHead = (name, head) => isAnswerable("api/block", question(name, head));
  const headOf = (name) => (block(name).kind === "attention" && hasHead(name, head) ? head : 0);
  const keyOf = (name) => `${name} ${headOf(name)}`;

  function fetchBlock(name) {
    const blocks = fetched,
      key = keyOf(name);
    if (!blocks.has(key)) {
      const loading = ask("api/block", question(name, headOf(name)));
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
    if (!answer) return;
    const follows = document.activeElement === document.body || document.activeElement.matches(".block");
    const from = at ?? (backward ? blocks.length : 0) - Math.sign(by); // the walk begins in the direction shown
    visit(Math.min(walk.length - 1, Math.max(0, from + by)), isNarrow());
    if (isNarrow()) return;
    if (follows) focusBlock(walk[at][0]);
    else figure.querySelector(".block[aria-pressed=true]").scrollIntoView({ block: "nearest" });
  }

  function draw() {
    directions.forEach((button, i) => button.setAttribute("aria-pressed", backward === (i === 1)));
    const ablated = new Set((answer?.ablated_heads ?? []).map((head) => Number(head.split(".")[1])));
    layerButtons.forEach((button, i) => {
      button.setAttribute("aria-pressed", layer === i);
      button.classList.toggle("ablated", ablated.has(i));
      button.title = ablated.has(i) ? `layer ${i} has ablated heads` : "";
    });
    for (const button of [...moves, play]) button.disabled = !answer;
    section.classList.toggle("is-backward", backward);
    drawing.draw({ answer, flow, layer, backward });
    mark();
    if (flow) whenIdle(fetchAhead);
  }

  function whereOf(name) {
    const { stack, layer: of } = block(name);
    const side = stackName(stack, about.model.task).toLowerCase().replace(" only", "");
    return `${side}${of === null ? "" : ` layer ${of}`}`;
  }
  const titleOf = (name) => `${block(name).title}, ${whereOf(name)}`;

  // Opens the block at a place of the walk.
  // `seen`: whether the window scrolls to the block after drawing it.
  function visit(place, seen = false) {
    at = place;
    const [name, back] = walk[at],
      of = block(name).layer ?? layer;
    const same = back === backward && of === layer;
    [backward, layer] = [back, of];
    if (same) mark();
    else draw();
    open(seen);
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

  // Marks the open block without drawing the figure again.
  function mark() {
    for (const button of figure.querySelectorAll(".block")) {
      const isOpen = at !== null && walk[at][0] === button.dataset.block;
      button.setAttribute("aria-pressed", String(isOpen));
      button.tabIndex = at === null || isOpen ? 0 : -1; // Tab leads from the open block to its panel
    }
    const end = at === walk.length - 1 ? ", the end" : "",
      pass = backward ? "backward" : "forward";
    const state = !answer
      ? []
      : at === null
        ? ["← → walk", detail(" through all blocks, ↑ ↓ move"), ", Enter opens"]
        : [
            `${at + 1} of ${walk.length}${end}`,
            detail(`, ${pass}, ${whereOf(walk[at][0])}: ${block(walk[at][0]).title}`),
          ];
    place.replaceChildren(...state);
    place.title = place.textContent;
  }

  function begin() {
    go(at === walk.length - 1 ? -Infinity : 1);
    playing = setInterval(() => {
      if (at === walk.length - 1) return stop();
      go(1);
    }, 1000 * SECONDS);
    play.replaceChildren(...PAUSE());
    section.classList.add("is-playing");
  }

  function stop() {
    if (!playing) return;
    clearInterval(playing);
    playing = null;
    play.replaceChildren(...PLAY());
    section.classList.remove("is-playing");
  }

  // ---- the open block

  async function open(seen = false) {
    writeAddress();
    isAwaited = seen && !answer;
    if (at === null || !answer)
      return show(
        "",
        introduction(about.model, answer, flow, backward, () => go(1)),
      );
    const name = walk[at][0],
      id = answer.translation;
    const loaded = await fetchBlock(name);
    if (at === null || walk[at][0] !== name || answer?.translation !== id) return;
    if (loaded.error) return panel.replaceChildren(el("p", { class: "error", role: "alert" }, loaded.error));
    const choose = async (chosen) => {
      head = chosen;
      await open();
      panel.querySelector('[aria-label="Head"] [aria-pressed="true"]')?.focus({ preventScroll: true });
    };
    const ablate = (chosen) => toggle(loaded.names[chosen]);
    show(`${id} ${name}`, openBlock(titleOf, loaded, backward, { choose, ablate, hasHead: (one) => hasHead(name, one) }, steps()));
    panel.dataset.block = name;
    focusPanel();
    if (!seen) return;
    if (!panel.contains(document.activeElement)) panel.focus({ preventScroll: true });
    panel.scrollIntoView({ block: "start" });
  }

  // Returns the buttons below the open block: to the next one, and to close it.
  function steps() {
    const next = walk[at + 1],
      isTurn = next && next[1] !== walk[at][1],
      other = document.querySelector("nav a[href='#translate']"); // missing in a saved page
    const button = (name, onclick, kind) => el("button", { type: "button", class: kind, onclick }, name);
    const walkOn = (by) => () => {
      stop();
      go(by);
    };
    const row = el(
      "p",
      { class: "row steps" },
      next
        ? button(`Next: ${isTurn ? "backward pass" : block(next[0]).title} →`, walkOn(1), "primary")
        : button("↺ Walk again", walkOn(-Infinity), "primary"),
      el("button", { type: "button", onclick: close }, "✕ Close", el("span", { class: "shortcut" }, " (Esc)")),
    );
    if (next) return [row];
    const end = "The walk ends here: every block has its gradient, which the optimizer uses to update the parameters. ";
    const advice = other
      ? ["To see what a head contributes, ablate it in its block, or in ", el("a", { href: other.hash }, other.textContent), "."]
      : [];
    return [el("p", { class: "end" }, el("strong", {}, end), ...advice), row];
  }

  // Fills the panel, scrolls it to its start if it showed something else, and keeps the focus in it.
  function show(content, elements) {
    const hadFocus = panel.contains(document.activeElement) && document.activeElement !== panel,
      wasAblating = hadFocus && document.activeElement.matches(".ablate");
    panel.replaceChildren(...elements);
    if (panel.dataset.content !== content) panel.scrollTop = 0;
    panel.dataset.content = content;
    delete panel.dataset.block;
    const next = panel.querySelector(wasAblating ? ".ablate" : "button.primary") ?? panel;
    if (hadFocus) next.focus({ preventScroll: true });
  }

  draw();
  open();
}
