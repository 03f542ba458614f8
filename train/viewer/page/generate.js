// Generate: the distribution of the next token of the text, reshaped by temperature, top-k and top-p, and sampling.
import { ask, el, recorded } from "./parts.js";

const SHOWN = 16; // number of tokens shown

export function start(section) {
  if (recorded) return;
  const slider = (name, least, most, step, value) =>
    el("input", { type: "range", id: name, min: least, max: most, step, value });
  const controls = {
    temperature: [slider("temperature", 0, 2, 0.05, 1), "Temperature", Number],
    top_k: [slider("top_k", 0, 40, 1, 0), "Top-k", (x) => (Number(x) === 0 ? "all" : x)],
    top_p: [slider("top_p", 0.05, 1, 0.05, 1), "Top-p", Number],
  };
  const values = {};
  const list = el("ul", { class: "share next" });
  const note = el("p", { class: "soft", role: "status" });
  const seed = el("input", { type: "number", id: "seed", min: 0, max: 4294967295, value: 1 });
  const sample = (count) =>
    el("button", { type: "button", onclick: () => draw(count) }, `Generate ${count} token${count > 1 ? "s" : ""}`);
  const box = el(
    "div",
    { class: "generate" },
    el("h3", {}, "Next token"),
    el(
      "div",
      { class: "row" },
      ...Object.entries(controls).map(([name, [input, title, show]]) => {
        const output = el("output", {}, String(show(input.value)));
        input.addEventListener("input", () => {
          output.textContent = show(input.value);
          draw(0);
        });
        values[name] = () => Number(input.value);
        return el("label", { class: "slider" }, `${title} `, input, output);
      }),
    ),
    el("div", { class: "row" }, sample(1), sample(50), el("label", {}, "Seed ", seed)),
    note,
    list,
  );
  section.insertBefore(box, section.children[1]);
  let answer = null,
    requests = 0;
  document.addEventListener("translated", ({ detail }) => {
    answer = detail.answer;
    draw(0);
  });

  async function draw(count) {
    if (!answer) return;
    const request = ++requests;
    const options = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, value()]));
    const text = document.getElementById("text");
    const loaded = await ask("api/next_token", { text: text.value, ...options, tokens: count, seed: Number(seed.value) });
    if (request !== requests) return;
    if (loaded.error) {
      note.textContent = loaded.error;
      return;
    }
    if (loaded.continuation) {
      text.value += loaded.continuation;
      seed.value = Number(seed.value) + 1;
      text.form.requestSubmit();
      return;
    }
    const [candidates, all] = [loaded.n_candidates, loaded.vocabulary].map((n) => n.toLocaleString("en"));
    note.textContent = `${candidates} of ${all} tokens can be sampled. The outline shows the model's own probability.`;
    const most = Math.max(...loaded.tokens.flatMap(({ p, sampled }) => [p, sampled]));
    list.replaceChildren(
      ...loaded.tokens.slice(0, SHOWN).map(({ label, p, sampled }) => {
        const [fill, outline] = [el("span", { class: "fill" }), el("span", { class: "outline" })];
        fill.style.width = `${(100 * sampled) / most}%`;
        outline.style.width = `${(100 * p) / most}%`;
        return el(
          "li",
          { class: sampled ? "" : "excluded" },
          el("span", {}, label),
          el("span", { class: "track" }, fill, outline),
          el("span", {}, sampled.toFixed(4)),
        );
      }),
    );
    section.dataset.next = requests;
  }
}
