// Translate: pieces as they are found, what else could have stood there, all heads, the layers' guesses.
import { ask, el, table } from "./parts.js";
import { grids, light, opened } from "./heads.js";

export function start(section, about) {
  if (!about.model) return section.append(el("p", { class: "error" }, about.why));
  const text = el("textarea", { id: "text", rows: 2, lang: "und", dir: "auto", placeholder: "A sentence in the source language" });
  const beam = el("input", { id: "width", type: "number", min: 1, max: 8, value: about.model.beam });
  const alpha = el("input", { id: "alpha", type: "number", step: 0.1, min: -10, max: 10, value: about.model.alpha });
  const form = el("form", { onsubmit: (event) => { event.preventDefault(); [off, before] = [[], null]; run(); } },
    el("label", { for: "text" }, "Sentence"), text,
    el("div", { class: "row" }, el("label", {}, "Beam ", beam), el("label", {}, "Alpha ", alpha), el("button", {}, "Translate")));
  const status = el("p", { id: "status", role: "status" });
  const result = el("div", { id: "result" });
  section.append(form, status, result);
  let off = [], before = null, running = null;

  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); form.requestSubmit(); }
  });

  async function run(prefix = []) {
    running?.abort();
    const mine = running = new AbortController();
    status.className = "";
    status.textContent = "…";
    const question = { text: text.value, beam: Number(beam.value), alpha: Number(alpha.value), prefix, off };
    const started = performance.now();
    let answer;
    try {
      answer = await ask("api/translate", question, (line) => {
        if (line.so_far && mine === running) status.textContent = `so far: ${line.so_far.join(" ")}`;
      }, mine.signal);
    } catch {
      return;
    }
    if (mine !== running || answer.cancelled) return;
    if (answer.error) {
      status.textContent = answer.error;
      status.className = "error";
      return;
    }
    show(answer);
    section.dataset.milliseconds = Math.round(performance.now() - started);
    document.dispatchEvent(new CustomEvent("translated", { detail: answer }));
  }

  function show(answer) {
    if (!off.length) before = answer;
    status.textContent = `${answer.text}${answer.finished ? "" : " (cut off at the greatest length)"}`;
    const place = el("div", { class: "heads" }), panel = el("div", { id: "head" }), others = el("div", { id: "others" });
    const lit = (side, i) => ({
      onmouseenter: () => light(place, side, i), onmouseleave: () => light(place, side, null),
      onfocus: () => light(place, side, i), onblur: () => light(place, side, null),
    });
    const pieces = (side, labels, made) => el("p", { class: "pieces", "aria-label": side }, ...labels.map(made));
    const changed = (i) => off.length > 0 && before && before.target[i] !== answer.target[i];
    const switched = (name) => { off = off.includes(name) ? off.filter((one) => one !== name) : [...off, name]; run(); };
    place.append(...grids(answer.heads, about.model.kinds, answer.off, (kind, layer, head) => opened(panel, kind, layer, head, off, switched)));
    result.replaceChildren(
      el("p", {}, `Score ${answer.score.toFixed(4)}, log-probability ${answer.log_probability.toFixed(4)} nats.`,
        answer.forced ? ` The first ${answer.forced} pieces are yours. ` : " ",
        ...answer.off.map((name) => el("button", { type: "button", class: "on-again", onclick: () => switched(name) }, `${name} is off: switch it on`))),
      ...(off.length && before ? [el("p", { id: "compare" }, `With all heads: ${before.text}. `, before.text === answer.text ? "Nothing has changed." : "What differs is marked.")] : []),
      el("h3", {}, "Source"),
      pieces("source", answer.source, (label, i) => el("span", { class: "piece", tabindex: 0, ...lit("source", i) }, label)),
      el("h3", {}, "Translation ", el("small", {}, "the probability of each piece; choose one to see what else could stand there")),
      pieces("translation", answer.target, (label, i) => el("button", { type: "button", class: `piece${changed(i) ? " changed" : ""}`, "aria-expanded": "false",
        ...lit("target", i), onclick: (event) => alternatives(event.currentTarget, i) }, label, el("small", {}, ` ${answer.p[i].toFixed(4)}${changed(i) ? " changed" : ""}`))),
      others,
      el("h3", {}, "All heads ", el("small", {}, "yellow is 1, violet 0; point at a piece to see its row and column; choose a head to open it")),
      place, panel,
      el("h3", {}, "Layer by layer"),
      table("What each decoder layer would write, read off through the tied matrix", ["layer", ...answer.target],
        answer.lens.map((row, i) => [i, ...row.map(({ label, p }) => `${label} ${p.toFixed(2)}`)])));

    function alternatives(button, i) {
      for (const other of result.querySelectorAll(".piece[aria-expanded]")) other.setAttribute("aria-expanded", "false");
      button.setAttribute("aria-expanded", "true");
      others.replaceChildren(el("p", {}, `Instead of "${answer.target[i]}" (piece ${i + 1}):`), el("p", { class: "row" },
        ...answer.alternatives[i].filter(({ id }) => id !== answer.ids[i]).slice(0, 5).map(({ id, label, p }) =>
          el("button", { type: "button", class: "alternative", onclick: () => run([...answer.ids.slice(0, i), id]) }, label, el("small", {}, ` ${p.toFixed(4)}`)))));
    }
  }
}
