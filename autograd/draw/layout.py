"""Layout of a graph: boxes in rows, inputs at the bottom, and lines that run between the boxes."""

from dataclasses import dataclass, field

GAP = 26  # distance between the boxes of a row
ROW = 104  # distance between the centers of rows
HALF = 22  # half of a box's height
Point = tuple[float, float]


@dataclass
class Box:
    """A box to draw: its lines of text, whether it is a leaf, and the source and the label of each arrow to it."""

    key: str
    lines: list[str]
    leaf: bool = False
    inputs: list[tuple[str, str]] = field(default_factory=list)


def ranks(graph: list[Box]) -> dict[str, int]:
    """Return each box's longest distance from the leaves.

    Arrows from later boxes, which occur if a module is called several times, are ignored.
    """
    rank: dict[str, int] = {}
    for box in graph:
        rank[box.key] = 1 + max((rank.get(source, -1) for source, _ in box.inputs), default=-1)
    return rank


class Layout:
    """Positions of boxes and lines. A line takes a narrow slot in each row that it crosses, so it covers no box.

    Attributes:
        rows: keys of boxes and slots, from the bottom up.
        x, y: centers by key.
        width: widths by key.
        lines: for each arrow, the keys along its path (both boxes and the slots between them) and its label.
        size: width and height of the picture.

    Args:
        pitch: distance between the centers of rows.
    """

    def __init__(self, graph: list[Box], pitch: float = ROW) -> None:
        rank = ranks(graph)
        self.rows: list[list[str]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
        self.width = {box.key: 20.0 + 7 * max(map(len, box.lines)) for box in graph}
        self.lines: list[tuple[list[str], str]] = []
        below: dict[str, list[str]] = {}
        for box in graph:
            self.rows[rank[box.key]].append(box.key)
            for source, label in box.inputs:
                if source in rank:
                    slots = [f"{len(self.lines)} {level}" for level in range(rank[source] + 1, rank[box.key])]
                    for level, slot in enumerate(slots, rank[source] + 1):
                        self.rows[level].append(slot)
                        self.width[slot] = 8.0
                    self.lines.append(([source, *slots, box.key], label))
                    for low, high in zip([source, *slots], [*slots, box.key], strict=True):
                        below.setdefault(high, []).append(low)
        self.x: dict[str, float] = {}
        for row in self.rows:
            inputs = {key: [self.x[k] for k in below.get(key, []) if k in self.x] for key in row}
            ordered = sorted(row, key=lambda k: mean(inputs[k]))
            self._place(ordered, {key: mean(x) for key, x in inputs.items() if x})
        left = min((self.x[k] - self.width[k] / 2 for k in self.x), default=0.0) - GAP / 2
        self.x = {key: x - left for key, x in self.x.items()}
        self.size = max((self.x[k] + self.width[k] / 2 for k in self.x), default=0.0) + GAP / 2, pitch * len(self.rows)
        self.y = {key: pitch * (len(self.rows) - 0.5 - i) for i, row in enumerate(self.rows) for key in row}

    def _place(self, row: list[str], ideal: dict[str, float]) -> None:
        """Place keys from left to right, each as close to its ideal x as its left neighbor allows; then center them."""
        end = -1e9 if ideal else 0.0
        for key in row:
            half = self.width[key] / 2
            self.x[key] = max(end + half, ideal.get(key, end + half))
            end = self.x[key] + half + GAP
        shift = mean([self.x[key] - ideal[key] for key in ideal])
        for key in row:
            self.x[key] -= shift

    def corners(self, keys: list[str]) -> list[Point]:
        """Return the corners of the line through `keys`."""
        inner = [(self.x[key], self.y[key] + side) for key in keys[1:-1] for side in (HALF, -HALF)]
        first, last = keys[0], keys[-1]
        return [(self.x[first], self.y[first] - HALF), *inner, (self.x[last], self.y[last] + HALF)]


def mean(values: list[float]) -> float:
    """Return the mean, or 0 for an empty list."""
    return sum(values) / len(values) if values else 0.0
