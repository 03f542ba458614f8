// The presentation mode for a lecture hall: full screen, larger text, the controls on one line, and in the Model view
// either the figure or the open block. The button or the key F starts and ends it.

import { isPresenting } from "./parts.js";

const root = document.documentElement;

export function start(button) {
  const set = (on) => {
    if (on) root.dataset.presenting = "";
    else delete root.dataset.presenting;
    button.textContent = on ? "✕ End (F)" : "Present";
    button.setAttribute("aria-pressed", String(on));
    dispatchEvent(new Event("resize")); // drawings follow the size of the letters
  };
  const toggle = () => {
    const on = !isPresenting();
    set(on);
    if (on) root.requestFullscreen?.().catch(() => {}); // if refused, as in a frame, the page fills the window
    else if (document.fullscreenElement) document.exitFullscreen();
  };
  button.addEventListener("click", toggle);
  document.addEventListener("fullscreenchange", () => document.fullscreenElement || set(false));
  document.addEventListener("keydown", ({ key, target, ctrlKey, metaKey, altKey }) => {
    if (key.toLowerCase() !== "f" || ctrlKey || metaKey || altKey || target.matches("input:not([type=checkbox]), select, textarea")) return;
    if (isPresenting() || button.checkVisibility()) toggle(); // the button is hidden on a phone
  });
  set(false);
  button.title = "Full screen with large text; the key F starts and ends it";
}
