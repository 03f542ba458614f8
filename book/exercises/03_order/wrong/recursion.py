"""The function calls itself once per node of a chain, and Python stops at about 1,000 nested calls. Use a list."""


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
        for parent, contribution in zip(node.parents, node.vjp(gradients[node]), strict=True):
            gradients[parent] = gradients.get(parent, 0.0) + contribution
    return gradients
