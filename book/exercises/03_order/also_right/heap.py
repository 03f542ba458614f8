"""Visit the largest waiting number next, with a heap, and find the nodes in the same walk."""

import heapq


def backward(last, g):
    """Order the waiting nodes by number."""
    gradients, heap = {last: g}, [(-last.number, id(last), last)]
    while heap:
        _, _, node = heapq.heappop(heap)
        for parent, contribution in zip(node.parents, node.vjp(gradients[node]), strict=True):
            if parent not in gradients:
                gradients[parent] = 0.0
                heapq.heappush(heap, (-parent.number, id(parent), parent))
            gradients[parent] += contribution
    return gradients
