"""It walks every path: a node that is used twice is visited twice, and 20 doublings have a million paths."""


def backward(last, g):
    gradients, stack = {}, [(last, g)]
    while stack:
        node, share = stack.pop()
        gradients[node] = gradients.get(node, 0.0) + share
        stack += zip(node.parents, node.vjp(share), strict=True)
    return gradients
