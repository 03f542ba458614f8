"""The second gradient that arrives at a node replaces the first. It has to be added: = stands where += belongs."""


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
            gradients[parent] = share
    return gradients
