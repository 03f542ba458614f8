// Starts the views and switches between them.
import { start } from "./parts.js";
import { start as step } from "./step.js";
import { start as translate } from "./translate.js";
import { start as beam } from "./beam.js";
import { start as curves } from "./curves.js";
import { save } from "./save.js";

if (location.search) history.replaceState(null, "", location.pathname + location.hash); // drop the used token

const sections = [...document.querySelectorAll("main > section")];
const links = [...document.querySelectorAll("nav a")];

function show() {
  const name = sections.some((s) => `#${s.id}` === location.hash) ? location.hash.slice(1) : first;
  for (const section of sections) section.hidden = section.id !== name;
  for (const link of links) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${links.find((link) => link.hash === `#${name}`).textContent} – npx-transformer`;
  document.dispatchEvent(new CustomEvent("shown", { detail: name }));
}

let first = "step";
const about = await start();
if (about) {
  const { model, runs } = about;
  document.getElementById("run").textContent = model
    ? `${runs[0]}: ${model.layers} layers, ${model.heads} heads, d_model ${model.d_model}, ` +
      `${model.parameters.toLocaleString("en")} parameters`
    : runs.join(", ") || "no run";
  for (const [name, view] of Object.entries({ step, translate, beam, curves }))
    view(document.getElementById(name), about);
  first = model ? "translate" : "step";
  document.getElementById("save").addEventListener("click", () => save(about));
  addEventListener("hashchange", show);
  show();
  document.body.dataset.ready = Math.round(performance.now()); // milliseconds since navigation
}
