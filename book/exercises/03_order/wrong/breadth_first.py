"""You visit nodes in order of discovery, so a contribution that arrives after the visit is never passed on."""


def backward(last, g):
    gradients, visited, waiting = {last: g}, {last}, [last]
    while waiting:
        node = waiting.pop(0)
        for parent, contribution in zip(node.parents, node.vjp(gradients[node]), strict=True):
            gradients[parent] = gradients.get(parent, 0.0) + contribution
            if parent not in visited:
                visited.add(parent)
                waiting.append(parent)
    return gradients
