"""You follow a parent at once, before its gradient is complete. First visit all nodes that use this parent."""


def backward(last, g):
    gradients = {last: g}

    def visit(node):
        for parent, contribution in zip(node.parents, node.vjp(gradients[node]), strict=True):
            new = parent not in gradients
            gradients[parent] = gradients.get(parent, 0.0) + contribution
            if new:
                visit(parent)

    visit(last)
    return gradients
