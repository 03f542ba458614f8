"""The second gradient that arrives at a node replaces the first. Add it: use += instead of =."""


def backward(last, g):
    nodes, stack = {last}, [last]
    while stack:
        for parent in stack.pop().parents:
            if parent not in nodes:
                nodes.add(parent)
                stack.append(parent)
    gradients = {last: g}
    for node in sorted(nodes, key=lambda node: -node.number):
        for parent, contribution in zip(node.parents, node.vjp(gradients[node]), strict=True):
            gradients[parent] = contribution
    return gradients
