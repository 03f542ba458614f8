"""Draw a graph as Mermaid, DOT or SVG: `python -m autograd.draw "a * b + a"`."""
