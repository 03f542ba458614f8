"""It calls itself for each node in a row, and Python stops at about 1,000 calls. Let a list remember instead."""


def backward(last, g):
    order, seen = [], set()

    def visit(node):
        seen.add(node)
        for parent in node.parents:
            if parent not in seen:
                visit(parent)
        order.append(node)

    visit(last)
    gradients = {last: g}
    for node in reversed(order):
        for parent, share in zip(node.parents, node.vjp(gradients[node]), strict=True):
            gradients[parent] = gradients.get(parent, 0.0) + share
    return gradients
