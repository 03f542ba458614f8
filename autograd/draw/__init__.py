"""Draw a graph as Mermaid, DOT or SVG: `python -m autograd.draw "a * b + a"`, or `GraphRecorder` in a notebook."""

from autograd.draw.graph import GraphRecorder

__all__ = ["GraphRecorder"]
