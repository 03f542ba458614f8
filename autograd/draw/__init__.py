"""Draw a graph as Mermaid, DOT or SVG: `python -m autograd.draw "a * b + a"`, or `Graph` in a notebook."""

from autograd.draw.graph import Graph

__all__ = ["Graph"]
