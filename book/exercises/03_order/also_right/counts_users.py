"""Kahn's order: a node is ready when all its users have been visited. Needs no numbers."""

from collections import Counter


def backward(last, g):
    """Counts first how often each node is used."""
    users, seen, stack = Counter(), {last}, [last]
    while stack:
        for parent in stack.pop().parents:
            users[parent] += 1
            if parent not in seen:
                seen.add(parent)
                stack.append(parent)
    gradients, ready = {last: g}, [last]
    while ready:
        node = ready.pop()
        for parent, share in zip(node.parents, node.vjp(gradients[node]), strict=True):
            gradients[parent] = gradients.get(parent, 0.0) + share
            users[parent] -= 1
            if users[parent] == 0:
                ready.append(parent)
    return gradients
