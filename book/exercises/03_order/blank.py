"""Exercise 3. In what order the gradient flows."""


def backward(last, g):
    """The gradient of `last` with respect to every node that it was computed from, as a dict from node to number.

    A node has `parents`, a tuple of the nodes it was computed from (one may stand there twice); `number`, counted up as
    nodes are made; and `vjp`, which takes the node's own whole gradient and gives a tuple, a share for each parent.
    A leaf is a node without parents: its vjp gives an empty tuple.
    g is the gradient of `last` itself. Each vjp runs once. A chain of 5,000 nodes is no problem.
    """
    gradients = {last: g}
    ...  # yours
    return gradients
