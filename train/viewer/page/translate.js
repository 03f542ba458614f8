// Translate, parse or read: tokens with probabilities and alternatives, the tree, all heads, each layer's prediction.
import { el, fixed, searches, table } from "./parts.js";
import { grids, openHead } from "./heads.js";
import { legend } from "./matrix.js";
import { drawTree } from "./tree.js";

const OUTPUTS = { text: "Predictions", classification: "Label", tagging: "Tags" }; // names of the predictions

export function start(section, about) {
  const { task, kinds } = about.model;
  const result = el("div", { id: "result" });
  let shown = null, // the answer
    opened = null, // the name of the open head
    openHeadAgain = null;
  section.append(result);
  document.addEventListener("translated", ({ detail: { answer, before, rerun, toggle, effect } }) => {
    if (answer.sentence !== shown?.sentence) opened = null;
    shown = answer;
    const focused = document.activeElement,
      isIn = (place) => result.querySelector(place)?.contains(focused);
    const [wasInHead, wasInOthers] = [isIn("#head"), isIn("#others")];
    show(answer, before, rerun, toggle, effect);
    // the focus stays where the user asked the question
    if (opened) openHeadAgain(wasInHead ? "#switch" : null);
    if (wasInOthers) result.querySelectorAll("button.token")[answer.forced - 1]?.focus();
  });

  function show(answer, before, rerun, toggle, effect) {
    const off = answer.ablated_heads;
    const place = el("div", { class: "heads" }),
      panel = el("div", { id: "head" }),
      others = el("div", { id: "others" });
    const lit = (side, i) => ({
      onmouseenter: () => light(side, i),
      onmouseleave: () => light(side, null),
      onfocus: () => light(side, i),
      onblur: () => light(side, null),
    });
    const tokenRow = (side, labels, build) => el("p", { class: "tokens", "aria-label": side }, ...labels.map(build));
    const isAblated = off.length > 0 && before;
    const changed = (i) => isAblated && before.target[i] !== answer.target[i];
    // the probability that an unchanged token has without ablation
    const change = (i) => (changed(i) ? " changed" : isAblated ? `, was ${before.p[i].toFixed(4)}` : "");
    openHeadAgain = (focus) => openHead(panel, answer, opened, { toggle, effect }, focus);
    const { blocks, light } = grids(answer.heads, kinds, off, (name) => {
      opened = name;
      openHeadAgain();
    });
    panel.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      place.querySelector(`[data-head="${opened}"]`)?.focus();
      opened = null;
      delete panel.dataset.head;
      panel.replaceChildren();
    });
    others.addEventListener("keydown", ({ key }) => {
      if (key === "Escape") result.querySelector("[aria-expanded=true]")?.focus();
    });
    place.append(...blocks);
    place.style.setProperty("--heads", about.model.heads);
    const about_score = searches(task)
      ? `Score ${fixed(answer.score)}, log-probability ${fixed(answer.log_probability)} nats.`
      : "";
    result.replaceChildren(
      el(
        "div",
        { class: "ends" },
        ...(task === "tree" ? [el("div", {}, el("h3", {}, "Tree"), drawTree(answer.text))] : []),
        el(
          "div",
          {},
          el("h3", {}, searches(task) ? "Source" : "Text"),
          tokenRow("source", answer.source, (label, i) =>
            el("span", { class: "token", tabindex: 0, ...lit("source", i) }, label),
          ),
        ),
        el(
          "div",
          {},
          el("h3", {}, `${OUTPUTS[task] ?? "Output"} `, el("small", {}, `${about_score} Select one to see alternatives.`)),
          tokenRow("translation", answer.target, (label, i) => {
            const chip = el(
              "button",
              {
                type: "button",
                class: `token${changed(i) ? " changed" : ""}`,
                "aria-expanded": "false",
                ...lit("target", answer.positions?.[i] ?? i),
                onclick: (event) => alternatives(event.currentTarget, i, event.detail === 0),
              },
              label,
              el("small", {}, ` ${answer.p[i].toFixed(4)}${change(i)}`),
            );
            chip.style.setProperty("--p", answer.p[i]);
            return chip;
          }),
        ),
      ),
      others,
      el(
        "h3",
        {},
        "All heads ",
        el("small", {}, "point at a token or weight to highlight its row and column; select a head to open it "),
        legend(1, [1], Object.values(answer.heads).some(({ masked }) => masked) ? "masked" : ""),
      ),
      place,
      panel,
      el("h3", {}, "Prediction of each layer"),
      table(
        `Most probable ${searches(task) || task === "text" ? "token" : "label"} if each ` +
          `${searches(task) ? "decoder " : ""}layer's output is projected to the vocabulary`,
        ["layer", ...answer.target],
        answer.lens.map((row, i) => [i, ...row.map(({ label, p }) => `${label} ${p.toFixed(2)}`)]),
      ),
    );

    // `focus`: whether the first alternative gets the focus, for a user of the keyboard.
    function alternatives(button, i, focus) {
      for (const other of result.querySelectorAll(".token[aria-expanded]"))
        other.setAttribute("aria-expanded", "false");
      button.setAttribute("aria-expanded", "true");
      const choices = answer.alternatives[i].filter(({ id }) => id !== answer.ids[i]).slice(0, 5);
      others.replaceChildren(
        el("p", {}, `${choices.length ? "Alternatives" : "No alternatives"} to "${answer.target[i]}" (token ${i + 1})`),
        el(
          "p",
          { class: "row" },
          ...choices.map(({ id, label, p }) => {
            const force = () => rerun([...answer.ids.slice(0, i), id], off);
            const content = [label, el("small", {}, ` ${p.toFixed(4)}`)];
            if (!searches(task)) return el("span", { class: "token" }, ...content);
            return el("button", { type: "button", class: "alternative", onclick: force }, ...content);
          }),
        ),
      );
      if (focus) others.querySelector("button")?.focus();
    }
  }
}
