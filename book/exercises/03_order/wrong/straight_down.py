"""It goes on to a parent at once, before all of its gradient is there. First come all nodes that used the parent."""


def backward(last, g):
    gradients = {last: g}

    def visit(node):
        for parent, share in zip(node.parents, node.vjp(gradients[node]), strict=True):
            new = parent not in gradients
            gradients[parent] = gradients.get(parent, 0.0) + share
            if new:
                visit(parent)

    visit(last)
    return gradients
