// Save the current view as one self-contained HTML file, or a drawing as SVG.
import { el, reach } from "./parts.js";

const STYLES = [
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
  // a button that saves a drawing as SVG with its current styles and background
  return el(
    "button",
    {
      type: "button",
      class: "control",
      onclick: () => {
        const svg = drawing();
        if (svg) download(`${name}.svg`, "image/svg+xml", selfContained(svg));
      },
    },
    "Save as SVG",
  );
}

function selfContained(drawing) {
  // inline the styles that the style sheet applies
  const copy = drawing.cloneNode(true),
    parts = copy.querySelectorAll("*");
  drawing.querySelectorAll("*").forEach((part, i) => {
    const style = getComputedStyle(part);
    for (const name of STYLES) parts[i].setAttribute(name, style.getPropertyValue(name));
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
  const mark = `data-${crypto.randomUUID()}`; // replaced by src in the text, because this page's policy blocks data images
  copy.querySelectorAll("canvas").forEach((canvas, i) => {
    const image = create("img", "", canvas.className);
    image.setAttribute(mark, drawn[i].toDataURL());
    image.alt = canvas.getAttribute("aria-label") ?? "";
    canvas.replaceWith(image);
  });
  copy.querySelectorAll("form, label, .control, details:not([open])").forEach((part) => part.remove());
  copy.querySelectorAll("button").forEach((button) => {
    const label = create("span", "", button.className);
    label.append(...button.childNodes);
    button.replaceWith(label);
  });
  const sheet = await reach("page.css");
  if (!sheet) return; // the banner shows the reason
  const css = create("style", await sheet.text());
  const parts = [
    create("title", document.title),
    css,
    copy,
    create("p", ["translate", "beam"].includes(section.id) ? `From ${about.source}.` : ""),
  ];
  const [title, style, ...body] = parts.map((part) => part.outerHTML.replaceAll(mark, "src"));
  const head = `<!doctype html>\n<html lang="en"><head><meta charset="utf-8">`;
  download(`${section.id}.html`, "text/html", `${head}${title}${style}</head><body>${body.join("\n")}</body></html>\n`);
}

function create(tag, text, name = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (name) element.className = name;
  return element;
}
