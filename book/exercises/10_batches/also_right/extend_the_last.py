"""Extend the last batch of the result, or start a new one."""


def batches(lengths, budget):
    result = []
    for i, length in sorted(enumerate(lengths), key=lambda pair: pair[1]):
        if result and (len(result[-1]) + 1) * length <= budget:
            result[-1].append(i)
        else:
            result.append([i])
    return result
