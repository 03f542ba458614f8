// The sentence that Model, Translate and Search tree show: the form, the running search, and the latest answer.
import { ask, el, fixed, isInBanner, isPresenting, minus, recall, recorded, remember, searches, short } from "./parts.js";

const WORDS = {
  translation: {
    label: "Sentence",
    button: "Translate",
    hint: "A sentence in the source language",
    empty: "(empty translation)",
    same: "The translation is the same",
  },
  tree: {
    label: "Sentence",
    button: "Parse",
    hint: "An English sentence",
    empty: "(empty tree)",
    same: "The tree is the same",
  },
  text: { label: "Text", button: "Read", hint: "A text like the training text" },
  classification: {
    label: "Text",
    button: "Classify",
    hint: "A text, or two texts with a tab between them",
    same: "The label is the same",
  },
  tagging: { label: "Sentence", button: "Tag", hint: "Words separated by spaces", same: "The tags are the same" },
};

// Fills `place`. For each answer, the event "translated" is sent with {answer, before, rerun, toggle, effect}. `before` is the
// answer without ablated heads, if known. `rerun(prefix, off)` asks again with forced first tokens and ablated heads.
// `toggle(name)` ablates or restores a head and asks again. `effect` describes the effect of the ablation. After an error, the
// latest answer remains.
export function start(place, about) {
  if (!about.model) return {};
  const { task, examples, beam_size, max_beam_size, length_penalty } = about.model,
    words = WORDS[task];
  const text = el("textarea", { id: "text", rows: 1, lang: "und", dir: "auto", placeholder: words.hint });
  const beamSize = el("input", { id: "beam_size", type: "number", min: 1, max: max_beam_size, value: beam_size });
  const lengthPenalty = el("input", {
    id: "length_penalty",
    type: "number",
    step: "any",
    min: -10,
    max: 10,
    value: length_penalty,
  });
  const choice = el(
    "select",
    { id: "examples" },
    el("option", { value: "" }, "Examples"),
    ...examples.map((example) => el("option", {}, example)),
  );
  const form = el(
    "form",
    {
      class: "sentence",
      novalidate: true, // `submit` says what is expected
      onsubmit: (event) => {
        event.preventDefault();
        submit();
      },
    },
    el("label", { for: "text" }, words.label),
    text,
    ...(searches(task) ? [el("label", {}, "Beam size ", beamSize), el("label", {}, "Length penalty ", lengthPenalty)] : []),
    el("button", { class: "primary" }, words.button),
    ...(examples.length ? [el("label", { class: "choice" }, el("span", { class: "hidden" }, "Examples"), choice)] : []),
  );
  const status = el("p", { id: "status", role: "status", dir: "auto" });
  const kept = el("p", { class: "settings" });
  const ablated = el("p", { class: "ablated row", hidden: true });
  const forced = el("p", { class: "forced row", hidden: true });
  const edited = el("p", { class: "soft", id: "edited", role: "status" });
  place.append(recorded ? kept : form, el("div", { class: "answer" }, status, edited, forced, ablated));
  const key = `sentence ${about.source}`; // in sessionStorage
  let running = null,
    sent = null, // the fields of the latest question
    shown = null, // the latest answer
    baseline = { question: "", answer: null }; // the latest answer without ablation, and its question
  form.addEventListener("input", markEdited);
  text.addEventListener("input", () => (choice.value = ""));

  const leave = () => document.querySelector("main > section:not([hidden]) > h2").focus(); // so that the keys of the view work
  text.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.preventDefault();
      leave();
    }
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      form.requestSubmit();
      if (isPresenting()) leave();
    }
  });
  // The arrow keys browse the list, and Enter sends the example; a choice with the mouse sends it at once.
  let isBrowsing = false;
  choice.addEventListener("pointerdown", () => (isBrowsing = false));
  choice.addEventListener("keydown", (event) => {
    isBrowsing = event.key !== "Enter";
    if (isBrowsing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  choice.addEventListener("change", () => {
    if (!choice.value) return;
    text.value = choice.value;
    if (isBrowsing) return markEdited();
    submit();
    leave();
  });

  function submit() {
    sent = fields();
    markEdited();
    if (!searches(task)) return run({ text: text.value });
    const numbers = { "beam size": beamSize, "length penalty": lengthPenalty };
    for (const [name, { value, min, max, validity, defaultValue }] of Object.entries(numbers)) {
      if (value !== "" && validity.valid) continue;
      const range = `${name === "beam size" ? "an integer" : "a number"} from ${min} to ${max}`;
      return fail(`${name}: expected ${range}; got ${value || "no number"}; try ${defaultValue}`);
    }
    run({ text: text.value, beam_size: Number(beamSize.value), length_penalty: Number(lengthPenalty.value) });
  }

  function fail(message) {
    status.textContent = message;
    status.className = "error";
  }

  function read(sentence) {
    text.value = sentence;
    submit();
  }

  // Sends the sentence from before a reload, or the first example.
  function begin() {
    const last = recall(() => sessionStorage, key);
    if (last) [text.value, beamSize.value, lengthPenalty.value] = last;
    if (last) submit();
    else if (examples.length) read(examples[0]);
  }

  const fields = () => [text.value, beamSize.value, lengthPenalty.value];
  const isEdited = () => sent !== null && JSON.stringify(sent) !== JSON.stringify(fields());
  function markEdited() {
    text.classList.toggle("edited", isEdited());
    edited.textContent = isEdited() ? `Edited, not yet sent: press Enter or ${words.button}.` : "";
  }

  async function run(search, prefix = [], off = []) {
    running?.abort();
    const controller = (running = new AbortController());
    status.className = "";
    status.textContent = "…";
    const question = JSON.stringify([search, prefix]);
    const started = performance.now();
    let first;
    const answer = await ask(
      "api/translate",
      { ...search, prefix, ablated_heads: off },
      (line) => {
        if (!line.so_far || controller !== running) return;
        first ??= Math.round(performance.now() - started);
        status.textContent = `so far: ${line.so_far.join(" ")}`;
      },
      controller.signal,
    );
    if (controller !== running) return;
    if (answer.error) {
      const reason = isInBanner(answer.error) ? [] : [answer.error.replace(/\.$/, "")]; // not twice
      return fail([...reason, ...(shown ? [`The values are still those of "${short(shown.sentence, 60)}"`] : [])].join(". "));
    }
    if (!off.length) baseline = { question, answer };
    remember(() => sessionStorage, key, sent);
    const before = baseline.question === question ? baseline.answer : null;
    announce(answer, before, (tokens, heads) => run(search, tokens, heads));
    const milliseconds = Math.round(performance.now() - started);
    Object.assign(place.dataset, { first: first ?? milliseconds, milliseconds }); // an empty translation has no first token
  }

  function announce(answer, before, rerun) {
    const { ids, ablated_heads: off, forced: n } = (shown = answer);
    const toggle = (name) =>
      rerun(ids.slice(0, n), off.includes(name) ? off.filter((one) => one !== name) : [...off, name]);
    const effect = off.length && before ? comparison(answer, before) : "";
    const hadFocus = [forced, ablated].some((one) => one.contains(document.activeElement));
    forced.hidden = !n;
    forced.replaceChildren(
      el("strong", {}, n === 1 ? "The first token is forced" : `The first ${n} tokens are forced`),
      ...(recorded ? [] : [el("button", { type: "button", onclick: () => rerun([], off) }, "Restore the model's choice")]),
    );
    ablated.hidden = !off.length;
    ablated.replaceChildren(
      el("strong", {}, `Without ${off.length === 1 ? "head" : "heads"} ${off.join(", ")}`),
      ...(effect ? [el("span", { id: "compare" }, effect)] : []),
      ...(recorded ? [] : off).map((name) =>
        el("button", { type: "button", class: "restore", onclick: () => toggle(name) }, `Restore head ${name}`),
      ),
    );
    if (hadFocus) (ablated.querySelector("button") ?? text).focus();
    status.className = "";
    status.textContent =
      task === "text"
        ? `Loss ${fixed(-answer.score)} nats per token, perplexity ${Math.exp(-answer.score).toFixed(2)}`
        : `${answer.text || words.empty}${task === "classification" ? `, probability ${answer.p[0].toFixed(4)}` : ""}${answer.finished ? "" : " (cut off at the maximum length)"}`;
    const settings = Object.entries(answer.settings).map(([name, value]) => `, ${name.replace("_", " ")} ${minus(value)}`);
    kept.textContent = `${words.label}: ${answer.sentence}${settings.join("")}`;
    document.dispatchEvent(new CustomEvent("translated", { detail: { answer, before, rerun, toggle, effect } }));
  }

  // Describes what the ablation changes.
  function comparison(answer, before) {
    const change = (what, from, to) => `${what} ${fixed(from, 3)} → ${fixed(to, 3)}`;
    if (task === "text") return `${change("loss", -before.score, -answer.score)} nats per token.`;
    const difference = change("log-probability", before.log_probability, answer.log_probability);
    if (before.text === answer.text) return `${words.same}; ${difference}.`;
    return `${before.text || words.empty} → ${answer.text || words.empty}; ${difference}.`;
  }

  return {
    begin,
    restore: () => recorded.sentence && announce(recorded.sentence.answer, recorded.sentence.before, () => {}),
  };
}
