"""The largest number that waits comes next: found and visited in one walk."""

import heapq


def backward(last, g):
    """A heap of numbers."""
    gradients, heap = {last: g}, [(-last.number, id(last), last)]
    while heap:
        _, _, node = heapq.heappop(heap)
        for parent, share in zip(node.parents, node.vjp(gradients[node]), strict=True):
            if parent not in gradients:
                gradients[parent] = 0.0
                heapq.heappush(heap, (-parent.number, id(parent), parent))
            gradients[parent] += share
    return gradients
