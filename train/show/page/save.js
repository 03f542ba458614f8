// Save: the present view as one HTML file that needs nothing else, or a drawing as SVG.

export function download(name, kind, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export async function save(about) {
  const section = document.querySelector("main > section:not([hidden])");
  const copy = section.cloneNode(true), drawn = section.querySelectorAll("canvas");
  const mark = `data-${crypto.randomUUID()}`;  // becomes src in the text: here this page's rules let no such image load
  copy.querySelectorAll("canvas").forEach((canvas, i) => {
    const image = made("img", "", canvas.className);
    image.setAttribute(mark, drawn[i].toDataURL());
    image.alt = canvas.getAttribute("aria-label") ?? "";
    canvas.replaceWith(image);
  });
  copy.querySelectorAll("form, details:not([open])").forEach((part) => part.remove());
  copy.querySelectorAll("button").forEach((button) => {
    const still = made("span", "", button.className);
    still.append(...button.childNodes);
    button.replaceWith(still);
  });
  const css = made("style", await (await fetch("page.css")).text());
  const parts = [made("title", document.title), css, copy, made("p", about.source ? `From ${about.source}.` : "")];
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
