// Translate: pieces as they are found, what else could have stood there, all heads, the layers' guesses.
import { ask, el, table } from "./parts.js";
import { grids, opened } from "./heads.js";

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
    whole = { of: "", answer: null }; // whole: the last answer with all heads, and to what

  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      form.requestSubmit();
    }
  });

  async function run(search, prefix, off) {
    // a sentence and how it is searched for, pieces to begin with, heads switched off
    running?.abort();
    const mine = (running = new AbortController());
    status.className = "";
    status.textContent = "…";
    const question = { ...search, prefix, off },
      of = JSON.stringify([search, prefix]);
    const started = performance.now();
    let first;
    const answer = await ask(
      "api/translate",
      question,
      (line) => {
        if (!line.so_far || mine !== running) return;
        first ??= Math.round(performance.now() - started);
        status.textContent = `so far: ${line.so_far.join(" ")}`;
      },
      mine.signal,
    );
    if (mine !== running) return;
    if (answer.cancelled) answer.error = "Another question has ended this one: ask again.";
    if (answer.error) {
      status.textContent = answer.error;
      status.className = "error";
      return;
    }
    if (!off.length) whole = { of, answer };
    show(answer, whole.of === of ? whole.answer : null, (pieces, heads) => run(search, pieces, heads));
    Object.assign(section.dataset, { first, milliseconds: Math.round(performance.now() - started) });
    document.dispatchEvent(new CustomEvent("translated", { detail: answer }));
  }

  function show(answer, before, again) {
    // `before`: with all heads, if that is known
    const off = answer.off;
    status.textContent = `${answer.text}${answer.finished ? "" : " (cut off at the greatest length)"}`;
    const place = el("div", { class: "heads" }),
      panel = el("div", { id: "head" }),
      others = el("div", { id: "others" });
    const lit = (side, i) => ({
      onmouseenter: () => light(side, i),
      onmouseleave: () => light(side, null),
      onfocus: () => light(side, i),
      onblur: () => light(side, null),
    });
    const pieces = (side, labels, made) => el("p", { class: "pieces", "aria-label": side }, ...labels.map(made));
    const changed = (i) => off.length > 0 && before && before.target[i] !== answer.target[i];
    const switched = (name) =>
      again(
        answer.ids.slice(0, answer.forced),
        off.includes(name) ? off.filter((one) => one !== name) : [...off, name],
      );
    const { blocks, light } = grids(answer.heads, about.model.kinds, off, (...head) =>
      opened(panel, answer.translation, ...head, off, switched),
    );
    place.append(...blocks);
    result.replaceChildren(
      el(
        "p",
        {},
        `Score ${answer.score.toFixed(4)}, log-probability ${answer.log_probability.toFixed(4)} nats.`,
        answer.forced ? ` The first ${answer.forced} pieces are yours. ` : " ",
        ...off.map((name) =>
          el(
            "button",
            { type: "button", class: "on-again", onclick: () => switched(name) },
            `${name} is off: switch it on`,
          ),
        ),
      ),
      ...(off.length && before
        ? [
            el(
              "p",
              { id: "compare" },
              `With all heads: ${before.text}. `,
              before.text === answer.text ? "Nothing has changed." : "What differs is marked.",
            ),
          ]
        : []),
      el("h3", {}, "Source"),
      pieces("source", answer.source, (label, i) =>
        el("span", { class: "piece", tabindex: 0, ...lit("source", i) }, label),
      ),
      el(
        "h3",
        {},
        "Translation ",
        el("small", {}, "the probability of each piece; choose one to see what else could stand there"),
      ),
      pieces("translation", answer.target, (label, i) =>
        el(
          "button",
          {
            type: "button",
            class: `piece${changed(i) ? " changed" : ""}`,
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
          "yellow is 1, violet 0; point at a piece or at a weight to see its row and column; choose a head to open it",
        ),
      ),
      place,
      panel,
      el("h3", {}, "Layer by layer"),
      table(
        "What each decoder layer would write, read off through the tied matrix",
        ["layer", ...answer.target],
        answer.lens.map((row, i) => [i, ...row.map(({ label, p }) => `${label} ${p.toFixed(2)}`)]),
      ),
    );

    function alternatives(button, i) {
      for (const other of result.querySelectorAll(".piece[aria-expanded]"))
        other.setAttribute("aria-expanded", "false");
      button.setAttribute("aria-expanded", "true");
      others.replaceChildren(
        el("p", {}, `Instead of "${answer.target[i]}" (piece ${i + 1}):`),
        el(
          "p",
          { class: "row" },
          ...answer.alternatives[i]
            .filter(({ id }) => id !== answer.ids[i])
            .slice(0, 5)
            .map(({ id, label, p }) =>
              el(
                "button",
                { type: "button", class: "alternative", onclick: () => again([...answer.ids.slice(0, i), id], off) },
                label,
                el("small", {}, ` ${p.toFixed(4)}`),
              ),
            ),
        ),
      );
    }
  }
}
