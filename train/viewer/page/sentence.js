// The sentence that Model, Translate and Search tree show: the form, the running search, and the latest answer.
import { ask, el, recorded } from "./parts.js";

const WORDS = {
  translation: { label: "Sentence", button: "Translate", hint: "A sentence in the source language" },
  tree: { label: "Sentence", button: "Parse", hint: "An English sentence" },
  text: { label: "Text", button: "Read", hint: "A text like the training text" },
};

// Fills `place`. Each answer is announced as the event "translated" with {answer, before, rerun}: `before` is the
// answer without ablated heads, if known, and `answer` is null after an error; `rerun(prefix, off)` asks again with
// forced first tokens and ablated heads. A setting that is not a number is reported, and the latest answer stays.
export function start(place, about) {
  if (!about.model) return { read: () => {} };
  const { task, examples, beam: width, most_beam, alpha: exponent } = about.model,
    words = WORDS[task];
  const text = el("textarea", { id: "text", rows: 1, lang: "und", dir: "auto", placeholder: words.hint });
  const beam = el("input", { id: "width", type: "number", min: 1, max: most_beam, value: width });
  const alpha = el("input", { id: "alpha", type: "number", step: "any", min: -10, max: 10, value: exponent });
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
    ...(task === "text" ? [] : [el("label", {}, "Beam ", beam), el("label", {}, "Alpha ", alpha)]),
    el("button", { class: "primary" }, words.button),
    ...(examples.length ? [el("label", { class: "choice" }, el("span", { class: "hidden" }, "Examples"), choice)] : []),
  );
  const status = el("p", { id: "status", role: "status", dir: "auto" });
  const kept = el("p", { class: "settings" });
  const ablated = el("p", { class: "ablated row", hidden: true });
  place.append(recorded ? kept : form, el("div", { class: "answer" }, status, ablated));
  let running = null,
    baseline = { key: "", answer: null }; // the latest answer without ablation, and its question

  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  choice.addEventListener("change", () => {
    if (choice.value) read(choice.value);
    choice.value = "";
  });

  function submit() {
    if (task === "text") return run({ text: text.value });
    for (const [name, { value, min, max, validity, defaultValue }] of Object.entries({ beam, alpha })) {
      if (value !== "" && validity.valid) continue;
      const range = `${name === "beam" ? "an integer" : "a number"} from ${min} to ${max}`;
      return fail(`${name}: expected ${range}; got ${value || "no number"}; try ${defaultValue}`);
    }
    run({ text: text.value, beam: Number(beam.value), alpha: Number(alpha.value) });
  }

  function fail(message) {
    status.textContent = message;
    status.className = "error";
  }

  function read(sentence) {
    text.value = sentence;
    submit();
  }

  async function run(search, prefix = [], off = []) {
    running?.abort();
    const controller = (running = new AbortController());
    status.className = "";
    status.textContent = "…";
    const key = JSON.stringify([search, prefix]);
    const started = performance.now();
    let first;
    const answer = await ask(
      "api/translate",
      { ...search, prefix, off },
      (line) => {
        if (!line.so_far || controller !== running) return;
        first ??= Math.round(performance.now() - started);
        status.textContent = `so far: ${line.so_far.join(" ")}`;
      },
      controller.signal,
    );
    if (controller !== running) return;
    if (answer.error) {
      fail(answer.error);
      if (!document.getElementById("banner").hidden) return; // the server is lost
      ablated.hidden = true;
      return tell({ answer: null });
    }
    if (!off.length) baseline = { key, answer };
    announce(answer, baseline.key === key ? baseline.answer : null, (tokens, heads) => run(search, tokens, heads));
    Object.assign(place.dataset, { first: first ?? 0, milliseconds: Math.round(performance.now() - started) });
  }

  function announce(answer, before, rerun) {
    const { ids, off } = answer;
    const restored = (name) => () =>
      rerun(
        ids.slice(0, answer.forced),
        off.filter((one) => one !== name),
      );
    const hadFocus = ablated.contains(document.activeElement);
    ablated.hidden = !off.length;
    ablated.replaceChildren(
      el("strong", {}, `Without ${off.length === 1 ? "head" : "heads"} ${off.join(", ")}`),
      ...(recorded ? [] : off).map((name) =>
        el("button", { type: "button", class: "restore", onclick: restored(name) }, `Restore head ${name}`),
      ),
    );
    if (hadFocus) (ablated.querySelector("button") ?? text).focus();
    status.className = "";
    status.textContent =
      task === "text"
        ? `Loss ${(-answer.score).toFixed(4)} nats per token, perplexity ${Math.exp(-answer.score).toFixed(2)}`
        : `${answer.text}${answer.finished ? "" : " (cut off at the maximum length)"}`;
    const settings = Object.entries(answer.settings).map(([name, value]) => `, ${name} ${value}`);
    kept.textContent = `${words.label}: ${answer.sentence}${settings.join("")}`;
    tell({ answer, before, rerun });
  }

  const tell = (detail) => document.dispatchEvent(new CustomEvent("translated", { detail }));

  return {
    read,
    restore: () => recorded.sentence && announce(recorded.sentence.answer, recorded.sentence.before, () => {}),
  };
}
