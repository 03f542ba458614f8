"""Where the boxes of a graph stand, in rows, inputs at the bottom, and how lines between them run past the others."""

from dataclasses import dataclass, field

GAP, ROW, HALF = 26, 104, 22  # between boxes of a row, between the middles of rows, of a box's height
Point = tuple[float, float]


@dataclass
class Box:
    """What is drawn: its lines, whether it is a leaf, and the boxes that it was computed from, by key."""

    key: str
    lines: list[str]
    leaf: bool = False
    inputs: list[tuple[str, str]] = field(default_factory=list)  # key, what is written beside the arrow


def ranks(graph: list[Box]) -> dict[str, int]:
    """How far each box is from the leaves, by the longest way; a way back within a module's box counts nothing."""
    rank: dict[str, int] = {}
    for box in graph:
        rank[box.key] = 1 + max((rank.get(other, -1) for other, _ in box.inputs), default=-1)
    return rank


class Layout:
    """Boxes in rows, inputs at the bottom, and the ways between them, which pass rows by points that nothing covers."""

    def __init__(self, graph: list[Box]) -> None:
        rank = ranks(graph)
        self.rows: list[list[str]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
        self.width = {box.key: 20.0 + 7 * max(map(len, box.lines)) for box in graph}
        self.ways: list[tuple[list[str], str]] = []  # keys from an input to a box, and what is written there
        below: dict[str, list[str]] = {}
        for box in graph:
            self.rows[rank[box.key]].append(box.key)
            for other, how in box.inputs:
                if other in rank:
                    points = [f"{len(self.ways)} {level}" for level in range(rank[other] + 1, rank[box.key])]
                    for level, point in enumerate(points, rank[other] + 1):
                        self.rows[level].append(point)
                        self.width[point] = 8.0
                    self.ways.append(([other, *points, box.key], how))
                    for low, high in zip([other, *points], [*points, box.key], strict=True):
                        below.setdefault(high, []).append(low)
        self.x: dict[str, float] = {}
        for row in self.rows:
            wanted = {key: [self.x[k] for k in below.get(key, []) if k in self.x] for key in row}
            self.place(sorted(row, key=lambda k: mean(wanted[k])), {k: mean(x) for k, x in wanted.items() if x})
        left = min((self.x[k] - self.width[k] / 2 for k in self.x), default=0.0) - GAP / 2
        self.x = {key: x - left for key, x in self.x.items()}
        self.size = max((self.x[k] + self.width[k] / 2 for k in self.x), default=0.0) + GAP / 2, ROW * len(self.rows)
        self.y = {key: ROW * (len(self.rows) - 0.5 - i) for i, row in enumerate(self.rows) for key in row}

    def place(self, row: list[str], wanted: dict[str, float]) -> None:
        """Each key of a row as near to where it is wanted as those to its left allow; then all by their mean error."""
        end = -1e9 if wanted else 0.0
        for key in row:
            half = self.width[key] / 2
            self.x[key] = max(end + half, wanted.get(key, end + half))
            end = self.x[key] + half + GAP
        shift = mean([self.x[key] - wanted[key] for key in wanted])
        for key in row:
            self.x[key] -= shift

    def way(self, keys: list[str]) -> list[Point]:
        """The corners of a way."""
        inner = [(self.x[key], self.y[key] + side) for key in keys[1:-1] for side in (HALF, -HALF)]
        first, last = keys[0], keys[-1]
        return [(self.x[first], self.y[first] - HALF), *inner, (self.x[last], self.y[last] + HALF)]


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
