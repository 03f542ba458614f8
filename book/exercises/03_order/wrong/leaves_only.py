"""Only nodes without parents are in your dict: every node that was on the way has a gradient, too."""


def backward(last, g):
    found, waiting = {last}, [last]
    while waiting:
        for parent in waiting.pop().parents:
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    gradients = {last: g}
    for node in sorted(found, key=lambda node: -node.number):
        for parent, share in zip(node.parents, node.vjp(gradients[node]), strict=True):
            gradients[parent] = gradients.get(parent, 0) + share
    return {node: gradient for node, gradient in gradients.items() if not node.parents}
