"""The node found last is visited first, before all of its gradient is there. The numbers say which one is next."""


def backward(last, g):
    gradients, waiting = {last: g}, [last]
    while waiting:
        node = waiting.pop()
        for parent, share in zip(node.parents, node.vjp(gradients[node]), strict=True):
            if parent not in gradients:
                waiting.append(parent)
            gradients[parent] = gradients.get(parent, 0.0) + share
    return gradients
