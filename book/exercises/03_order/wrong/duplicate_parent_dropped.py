"""A parent that appears twice in one node receives only one of its two contributions. In x * x, x needs both."""


def backward(last, g):
    nodes, stack = {last}, [last]
    while stack:
        for parent in stack.pop().parents:
            if parent not in nodes:
                nodes.add(parent)
                stack.append(parent)
    gradients = {last: g}
    for node in sorted(nodes, key=lambda node: -node.number):
        contributions = dict(zip(reversed(node.parents), reversed(node.vjp(gradients[node])), strict=True))
        for parent, contribution in contributions.items():
            gradients[parent] = gradients.get(parent, 0.0) + contribution
    return gradients
