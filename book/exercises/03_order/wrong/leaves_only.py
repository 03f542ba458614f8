"""Your dict contains only the leaves. Include every other node on the way from `last`, and `last` itself."""


def backward(last, g):
    nodes, stack = {last}, [last]
    while stack:
        for parent in stack.pop().parents:
            if parent not in nodes:
                nodes.add(parent)
                stack.append(parent)
    gradients = {last: g}
    for node in sorted(nodes, key=lambda node: -node.number):
        for parent, contribution in zip(node.parents, node.vjp(gradients[node]), strict=True):
            gradients[parent] = gradients.get(parent, 0) + contribution
    return {node: gradient for node, gradient in gradients.items() if not node.parents}
