"""You visit the node found last, before its gradient is complete. Visit the node with the largest number next."""


def backward(last, g):
    gradients, waiting = {last: g}, [last]
    while waiting:
        node = waiting.pop()
        for parent, contribution in zip(node.parents, node.vjp(gradients[node]), strict=True):
            if parent not in gradients:
                waiting.append(parent)
            gradients[parent] = gradients.get(parent, 0.0) + contribution
    return gradients
