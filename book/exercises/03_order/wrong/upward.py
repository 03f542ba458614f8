"""The smallest number comes first: the way back begins at `last`, which has the largest."""


def backward(last, g):
    found, waiting = {last}, [last]
    while waiting:
        for parent in waiting.pop().parents:
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    gradients = {last: g}
    for node in sorted(found, key=lambda node: node.number):
        for parent, share in zip(node.parents, node.vjp(gradients[node]), strict=True):
            gradients[parent] = gradients.get(parent, 0) + share
    return gradients
