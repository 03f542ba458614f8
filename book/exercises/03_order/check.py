"""A node is ready when every node that uses it has been visited. Which order of the numbers guarantees that?"""

import numpy as np

from book.exercise import Rejected, Stage, text


class Node:
    """A node whose vjp multiplies g by a fixed slope for each parent."""

    def __init__(self, number, parents, slopes, log):
        self.number, self.parents, self.slopes, self.log = number, tuple(parents), slopes, log

    def vjp(self, g):
        if self.parents:
            self.log.append(self.number)
        if len(self.log) > 100_000:
            raise Rejected(f"expected each vjp to run once; got {len(self.log):,} calls")
        return tuple(g * slope for slope in self.slopes)

    def __repr__(self):
        return f"x{self.number}"


def build(graph):
    """Return the nodes of a graph given as a list of [[parent, slope], ...], and the log of their vjp calls."""
    nodes, log = [], []
    for number, inputs in enumerate(graph):
        nodes.append(Node(number, [nodes[i] for i, _ in inputs], [slope for _, slope in inputs], log))
    return nodes, log


def yours(module, graph, g=1.0):
    nodes, log = build(graph)
    result = module.backward(nodes[-1], g)
    if not isinstance(result, dict) or not all(isinstance(node, Node) for node in result):
        raise Rejected(f"expected backward to return a dict from node to gradient; got {text(result)}")
    gradients = {f"x{node.number}": float(g) for node, g in sorted(result.items(), key=lambda item: item[0].number)}
    return gradients, {"vjps run": len(log)}


def right(graph, g=1.0):
    gradients = {len(graph) - 1: g}
    for number in range(len(graph) - 1, -1, -1):
        for parent, slope in graph[number] if number in gradients else ():
            gradients[parent] = gradients.get(parent, 0.0) + gradients[number] * slope
    vjp_calls = {"vjps run": sum(1 for number in gradients if graph[number])}
    return {f"x{number}": g for number, g in sorted(gradients.items())}, vjp_calls


def call(graph, g=1.0):
    lines = [f"x{i} = {' + '.join(f'{s:g} x{p}' for p, s in inputs)}" for i, inputs in enumerate(graph) if inputs]
    graph_text = "; ".join(lines[:8]) + ("; ..." if len(lines) > 8 else "") if lines else "x0 is a leaf"
    return f"{graph_text}\nbackward(x{len(graph) - 1}, {g})"


def by_hand(seed):
    yield ([[], [[0, 2.0]]],)
    yield [[], [[0, 2.0]]], 10.0
    yield ([[], [[0, 2.0], [0, 3.0]]],)  # x0 appears twice in one operation
    yield ([[], [[0, 2.0]], [[0, 3.0], [1, 1.0]]],)  # x0 is used by two nodes
    yield ([[], [[0, 2.0]], [[1, 3.0], [0, 5.0]]],)
    yield ([[], [[0, 2.0]], [[1, 3.0]], [[1, 5.0], [2, 7.0]]],)
    yield ([[], [[0, 2.0]], [[1, 3.0]], [[2, 7.0], [1, 5.0]]],)  # catches answers that take the last parent first
    yield ([[], [[0, 2.0]], [[0, 3.0]], [[2, 1.0]]],)  # nothing uses x1
    yield ([[], [[0, 2.0]], [[1, 1.0], [1, 3.0]], [[1, 5.0]], [[2, 1.0], [3, 1.0]]],)  # x2 uses x1 twice, x3 once
    yield ([[], [[0, 2.0]], [[1, 1.0], [1, 3.0]], [[1, 5.0]], [[3, 1.0], [2, 1.0]]],)
    yield ([[], [[0, 0.0]]],)  # a gradient of 0 belongs in the dict too
    yield ([[], [[0, 3.0]], [[1, 1.0], [1, -1.0]]],)  # the parents of a node with gradient 0 belong there too
    yield [[]], 10.0


def drawn(seed):
    random = np.random.default_rng(seed)
    for size in (3, 4, 5, 6, 8, 12):
        graph = [[], []]
        for number in range(2, size):
            inputs = random.integers(0, number, size=random.integers(1, 4))
            graph.append([[int(i), float(random.integers(1, 5))] for i in inputs])
        yield (graph,)


def large(seed):  # a separate stage, because only small graphs give useful hints
    yield (((), *(((i, 1.0), (i, 1.0)) for i in range(20))),)  # 20 doublings: a million paths
    yield (((), *(((i, 1.0),) for i in range(5000))),)


def explain(yours, right, graph, g=1.0):
    (gradients, calls), (expected, right_calls) = yours, right
    missing, extra = sorted(expected.keys() - gradients.keys()), sorted(gradients.keys() - expected.keys())
    if missing or extra:
        return f"{missing[0]} is missing from your dict." if missing else f"The result does not depend on {extra[0]}."
    if calls != right_calls:
        return f"Your vjps run {calls['vjps run']} times in all; {right_calls['vjps run']} nodes have parents."
    wrong = next(f"x{n}" for n in range(len(graph) - 1, -1, -1) if gradients.get(f"x{n}") != expected.get(f"x{n}"))
    parts = [
        f"{expected[f'x{user}'] * slope:g} from x{user}"
        for user, inputs in enumerate(graph)
        for parent, slope in inputs
        if f"x{parent}" == wrong and f"x{user}" in expected
    ]
    start = f"the gradient of {wrong} is the given {g:g}" if not parts else f"{wrong} should receive {', '.join(parts)}"
    one = (
        ", which is one of them; add all"
        if f"{gradients[wrong]:g}" in [x.split()[0] for x in parts[1:] and parts]
        else ""
    )
    return f"The first wrong gradient: {start}; yours is {gradients[wrong]:g}{one}."


STAGES = [
    Stage("a gradient is wrong, or a vjp ran more than once", by_hand, yours, right, call, explain=explain),
    Stage("a gradient is wrong", drawn, yours, right, call, explain=explain),
    Stage(
        "small graphs are right, but a large one is not",
        large,
        lambda m, graph: yours(m, graph),
        right,
        call,
        explain=explain,
    ),
]
NAMES = {
    "contribution": "what a vjp returns for one parent",
    "nodes": "the set of all nodes",
    "stack": "a list of nodes to look at",
    "heap": "the nodes that wait",
    "users": "how often each node is still to be used",
    "ready": "the nodes that wait",
    "seen": "the set of nodes found so far",
}
AFTER = """\
The real one (autograd/engine.py, `backward`) does the same and frees each vjp as soon as it has run, so memory falls
during the backward pass. The first gradient that arrives at a node is borrowed, not copied."""
