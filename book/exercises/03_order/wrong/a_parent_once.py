"""A parent that stands twice in one node gets one share only: x * x has x for both of its parents."""


def backward(last, g):
    found, waiting = {last}, [last]
    while waiting:
        for parent in waiting.pop().parents:
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    gradients = {last: g}
    for node in sorted(found, key=lambda node: -node.number):
        shares = dict(zip(reversed(node.parents), reversed(node.vjp(gradients[node])), strict=True))
        for parent, share in shares.items():
            gradients[parent] = gradients.get(parent, 0.0) + share
    return gradients
