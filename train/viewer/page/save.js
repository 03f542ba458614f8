// Save: the present view as one HTML file that needs nothing else, or a drawing as SVG.
import { el, reach } from "./parts.js";

const LOOKS = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-opacity",
  "paint-order",
  "font-size",
  "font-family",
  "text-anchor",
];

function download(name, kind, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function saving(name, drawing) {
  // a button that saves a drawing as it looks now, on its background
  return el(
    "button",
    {
      type: "button",
      class: "control",
      onclick: () => {
        const made = drawing();
        if (made) download(`${name}.svg`, "image/svg+xml", alone(made));
      },
    },
    "Save as SVG",
  );
}

function alone(drawing) {
  // what a style sheet says of it becomes its own
  const copy = drawing.cloneNode(true),
    parts = copy.querySelectorAll("*");
  drawing.querySelectorAll("*").forEach((part, i) => {
    const style = getComputedStyle(part);
    for (const name of LOOKS) parts[i].setAttribute(name, style.getPropertyValue(name));
  });
  const { x, y, width, height } = drawing.viewBox.baseVal;
  copy.prepend(
    el("title", {}, drawing.getAttribute("aria-label")),
    el("rect", { x, y, width, height, fill: getComputedStyle(document.body).backgroundColor }),
  );
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  return new XMLSerializer().serializeToString(copy);
}

export async function save(about) {
  const section = document.querySelector("main > section:not([hidden])");
  const copy = section.cloneNode(true),
    drawn = section.querySelectorAll("canvas");
  const mark = `data-${crypto.randomUUID()}`; // becomes src in the text: here this page's rules let no such image load
  copy.querySelectorAll("canvas").forEach((canvas, i) => {
    const image = made("img", "", canvas.className);
    image.setAttribute(mark, drawn[i].toDataURL());
    image.alt = canvas.getAttribute("aria-label") ?? "";
    canvas.replaceWith(image);
  });
  copy.querySelectorAll("form, label, .control, details:not([open])").forEach((part) => part.remove());
  copy.querySelectorAll("button").forEach((button) => {
    const still = made("span", "", button.className);
    still.append(...button.childNodes);
    button.replaceWith(still);
  });
  const sheet = await reach("page.css");
  if (!sheet) return; // the banner says why
  const css = made("style", await sheet.text());
  const parts = [
    made("title", document.title),
    css,
    copy,
    made("p", ["translate", "beam"].includes(section.id) ? `From ${about.source}.` : ""),
  ];
  const [title, style, ...body] = parts.map((part) => part.outerHTML.replaceAll(mark, "src"));
  const head = `<!doctype html>\n<html lang="en"><head><meta charset="utf-8">`;
  download(`${section.id}.html`, "text/html", `${head}${title}${style}</head><body>${body.join("\n")}</body></html>\n`);
}

function made(tag, text, name = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (name) element.className = name;
  return element;
}
