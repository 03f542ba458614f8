"""Exercise 3. The order in which the gradient flows."""


def backward(last, g):
    """Return the gradients of `last` and of every node that it was computed from, as a dict from node to number.

    A node has three attributes. `parents` is a tuple of the nodes from which the node was computed; it may contain
    a node twice. `number` counts the nodes in order of creation. `vjp` takes the node's complete gradient and returns a
    tuple with one contribution for each parent. A leaf is a node without parents; its vjp returns an empty tuple.

    g is the gradient of `last`. Call each vjp once. A chain of 5,000 nodes must work.
    """
    nodes, stack = {last}, [last]
    while stack:  # not recursion, which limits the depth
        for parent in stack.pop().parents:
            if parent not in nodes:
                nodes.add(parent)
                stack.append(parent)

    gradients = {last: g}
    # Every user of a node was created after it. So from the largest number down, each gradient is complete when its
    # node is visited.
    for node in sorted(nodes, key=lambda node: -node.number):
        for parent, contribution in zip(node.parents, node.vjp(gradients[node]), strict=True):
            gradients[parent] = gradients.get(parent, 0) + contribution
    return gradients
