"""Kahn's algorithm: a node is ready when all its users have been visited. It needs no numbers."""

from collections import Counter


def backward(last, g):
    """Count first how often each node is used."""
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
        for parent, contribution in zip(node.parents, node.vjp(gradients[node]), strict=True):
            gradients[parent] = gradients.get(parent, 0.0) + contribution
            users[parent] -= 1
            if users[parent] == 0:
                ready.append(parent)
    return gradients
