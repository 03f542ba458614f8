"""This walks every path, so a node used twice is visited twice. 20 doublings have a million paths."""


def backward(last, g):
    gradients, stack = {}, [(last, g)]
    while stack:
        node, contribution = stack.pop()
        gradients[node] = gradients.get(node, 0.0) + contribution
        stack += zip(node.parents, node.vjp(contribution), strict=True)
    return gradients
