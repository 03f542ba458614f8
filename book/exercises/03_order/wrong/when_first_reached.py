"""A node is visited when it is first reached, before all of its gradient is there: the rest is never handed on."""


def backward(last, g):
    gradients, visited, waiting = {last: g}, {last}, [last]
    while waiting:
        node = waiting.pop(0)
        for parent, share in zip(node.parents, node.vjp(gradients[node]), strict=True):
            gradients[parent] = gradients.get(parent, 0.0) + share
            if parent not in visited:
                visited.add(parent)
                waiting.append(parent)
    return gradients
