// Render the formulas that pymdownx.arithmatex marks up.
for (const element of document.querySelectorAll(".arithmatex")) {
  renderMathInElement(element, {delimiters: [{left: "\\(", right: "\\)"}, {left: "\\[", right: "\\]", display: true}]});
}
