// Translate: tokens as the search finds them, alternatives, all heads, and each layer's prediction.
import { ask, el, table } from "./parts.js";
import { grids, openHead } from "./heads.js";

export function start(section, about) {
  if (!about.model) return section.append(el("p", { class: "error" }, about.why));
  const text = el("textarea", {
    id: "text",
    rows: 2,
    lang: "und",
    dir: "auto",
    placeholder: "A sentence in the source language",
  });
  const beam = el("input", {
    id: "width",
    type: "number",
    min: 1,
    max: about.model.most_beam,
    value: about.model.beam,
  });
  const alpha = el("input", { id: "alpha", type: "number", step: "any", min: -10, max: 10, value: about.model.alpha });
  const form = el(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        run({ text: text.value, beam: Number(beam.value), alpha: Number(alpha.value) }, [], []);
      },
    },
    el("label", { for: "text" }, "Sentence"),
    text,
    el(
      "div",
      { class: "row" },
      el("label", {}, "Beam ", beam),
      el("label", {}, "Alpha ", alpha),
      el("button", {}, "Translate"),
    ),
  );
  const status = el("p", { id: "status", role: "status" });
  const result = el("div", { id: "result" });
  section.append(form, status, result);
  let running = null,
    baseline = { key: "", answer: null }; // the latest answer without ablation, and its query

  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      form.requestSubmit();
    }
  });

  async function run(search, prefix, off) {
    // `search`: sentence and options; `prefix`: forced first tokens; `off`: ablated heads
    running?.abort();
    const controller = (running = new AbortController());
    status.className = "";
    status.textContent = "…";
    const query = { ...search, prefix, off },
      key = JSON.stringify([search, prefix]);
    const started = performance.now();
    let first;
    const answer = await ask(
      "api/translate",
      query,
      (line) => {
        if (!line.so_far || controller !== running) return;
        first ??= Math.round(performance.now() - started);
        status.textContent = `so far: ${line.so_far.join(" ")}`;
      },
      controller.signal,
    );
    if (controller !== running) return;
    if (answer.cancelled) answer.error = "Cancelled by a newer request. Try again.";
    if (answer.error) {
      status.textContent = answer.error;
      status.className = "error";
      return;
    }
    if (!off.length) baseline = { key, answer };
    show(answer, baseline.key === key ? baseline.answer : null, (tokens, heads) => run(search, tokens, heads));
    Object.assign(section.dataset, { first, milliseconds: Math.round(performance.now() - started) });
    document.dispatchEvent(new CustomEvent("translated", { detail: answer }));
  }

  function show(answer, before, rerun) {
    // `before`: the answer without ablation, if known
    const off = answer.off;
    status.textContent = `${answer.text}${answer.finished ? "" : " (cut off at the maximum length)"}`;
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
    const changed = (i) => off.length > 0 && before && before.target[i] !== answer.target[i];
    const toggle = (name) =>
      rerun(
        answer.ids.slice(0, answer.forced),
        off.includes(name) ? off.filter((one) => one !== name) : [...off, name],
      );
    const { blocks, light } = grids(answer.heads, about.model.kinds, off, (...head) =>
      openHead(panel, answer.translation, ...head, off, toggle),
    );
    place.append(...blocks);
    result.replaceChildren(
      el(
        "p",
        {},
        `Score ${answer.score.toFixed(4)}, log-probability ${answer.log_probability.toFixed(4)} nats.`,
        answer.forced ? ` The first ${answer.forced} tokens were forced. ` : " ",
        ...off.map((name) =>
          el(
            "button",
            { type: "button", class: "restore", onclick: () => toggle(name) },
            `Restore ablated head ${name}`,
          ),
        ),
      ),
      ...(off.length && before
        ? [
            el(
              "p",
              { id: "compare" },
              `Without ablation: ${before.text}. `,
              before.text === answer.text ? "Nothing changed." : "Changed tokens are marked.",
            ),
          ]
        : []),
      el("h3", {}, "Source"),
      tokenRow("source", answer.source, (label, i) =>
        el("span", { class: "token", tabindex: 0, ...lit("source", i) }, label),
      ),
      el(
        "h3",
        {},
        "Translation ",
        el("small", {}, "with the probability of each token; select one to see alternatives"),
      ),
      tokenRow("translation", answer.target, (label, i) =>
        el(
          "button",
          {
            type: "button",
            class: `token${changed(i) ? " changed" : ""}`,
            "aria-expanded": "false",
            ...lit("target", i),
            onclick: (event) => alternatives(event.currentTarget, i),
          },
          label,
          el("small", {}, ` ${answer.p[i].toFixed(4)}${changed(i) ? " changed" : ""}`),
        ),
      ),
      others,
      el(
        "h3",
        {},
        "All heads ",
        el(
          "small",
          {},
          "violet is 0, yellow is 1; point at a token or weight to highlight its row and column; select a head to open it",
        ),
      ),
      place,
      panel,
      el("h3", {}, "Prediction of each layer"),
      table(
        "Most probable token if each decoder layer's output is projected to the vocabulary",
        ["layer", ...answer.target],
        answer.lens.map((row, i) => [i, ...row.map(({ label, p }) => `${label} ${p.toFixed(2)}`)]),
      ),
    );

    function alternatives(button, i) {
      for (const other of result.querySelectorAll(".token[aria-expanded]"))
        other.setAttribute("aria-expanded", "false");
      button.setAttribute("aria-expanded", "true");
      others.replaceChildren(
        el("p", {}, `Alternatives to "${answer.target[i]}" (token ${i + 1}):`),
        el(
          "p",
          { class: "row" },
          ...answer.alternatives[i]
            .filter(({ id }) => id !== answer.ids[i])
            .slice(0, 5)
            .map(({ id, label, p }) =>
              el(
                "button",
                { type: "button", class: "alternative", onclick: () => rerun([...answer.ids.slice(0, i), id], off) },
                label,
                el("small", {}, ` ${p.toFixed(4)}`),
              ),
            ),
        ),
      );
    }
  }
}
