// Starts the views and switches between them.
import { recorded, rounded, searches, setTheme, start, theme } from "./parts.js";
import { start as sentence } from "./sentence.js";
import { start as model } from "./model.js";
import { start as translate } from "./translate.js";
import { start as generate } from "./generate.js";
import { start as beam } from "./beam.js";
import { start as step } from "./step.js";
import { start as curves } from "./curves.js";
import { start as saving } from "./save.js";
import { start as presenting } from "./present.js";

if (location.search) history.replaceState(null, "", location.pathname + location.hash); // drop the used token

const sections = [...document.querySelectorAll("main > section")];
const links = [...document.querySelectorAll("nav a")];
const OF_SENTENCE = ["model", "translate", "beam"];
const NAMES = { translation: "Translate", tree: "Parse", text: "Generate", classification: "Classify", tagging: "Tag" };
let first = "step",
  shown = null;

function show() {
  const [view] = location.hash.slice(1).split("/"); // the view reads the rest
  const name = sections.some(({ id }) => id === view) ? view : first;
  for (const section of sections) section.hidden = section.id !== name;
  document.getElementById("ask").hidden = !OF_SENTENCE.includes(name);
  for (const link of links) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${links.find((link) => link.hash === `#${name}`).textContent} – npx-transformer`;
  document.dispatchEvent(new CustomEvent("shown", { detail: name }));
  if (shown && shown !== name) document.getElementById(`${name}-title`).focus({ preventScroll: true });
  shown = name;
}

function remove(name) {
  sections
    .splice(
      sections.findIndex((section) => section.id === name),
      1,
    )[0]
    .remove();
  links
    .splice(
      links.findIndex((link) => link.hash === `#${name}`),
      1,
    )[0]
    .remove();
}

// Moves the focus past the navigation and the sentence. The link itself would replace the view's name in the address.
document.querySelector(".skip")?.addEventListener("click", (event) => {
  event.preventDefault();
  document.querySelector("main > section:not([hidden]) > h2").focus();
});
const button = document.getElementById("theme");
const nameTheme = () => (button.textContent = theme() === "dark" ? "Light" : "Dark");
button.addEventListener("click", () => {
  setTheme(theme() === "dark" ? "light" : "dark");
  nameTheme();
});
nameTheme();
presenting(document.getElementById("present"));

const about = await start();
if (about) {
  const { model: trained, runs } = about;
  const summary = document.getElementById("run");
  summary.textContent = summary.title = trained
    ? `${runs[0]}: ${trained.layers} layers, ${trained.heads} heads, d_model ${trained.d_model}, ` +
      `${rounded(trained.parameters)} parameters`
    : about.unavailable_reason;
  if (trained) {
    const name = NAMES[trained.task];
    links.find((link) => link.hash === "#translate").textContent = name;
    document.getElementById("translate-title").textContent = `${name} and inspect`;
    if (!searches(trained.task)) remove("beam");
  } else OF_SENTENCE.forEach(remove);
  const ask = sentence(document.getElementById("ask"), about);
  const views = { model, translate, beam, step, curves };
  for (const { id } of sections) views[id](document.getElementById(id), about);
  if (trained?.task === "text") generate(document.getElementById("translate"), about);
  first = trained ? "model" : "step";
  saving(document.getElementById("save"), about);
  addEventListener("hashchange", show);
  if (recorded) {
    first = recorded.view;
    for (const link of links) if (link.hash !== `#${first}`) link.remove();
    links.splice(
      0,
      links.length,
      links.find((link) => link.hash === `#${first}`),
    );
    ask.restore?.();
  } else ask.begin?.();
  show();
  document.body.dataset.ready = Math.round(performance.now()); // milliseconds since navigation
}
