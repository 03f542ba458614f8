"""EVALB once more, as it works: character by character over one line, arrays of numbers, every pair of brackets tried.

Written from what EVALB does and not from train/tasks/parsing/evalb.py, to be compared with it.
"""

DELETED = ("TOP", "-NONE-", ",", ":", "``", "''", ".")
COLLINS = {"deleted": DELETED, "not_counted": ("-NONE-",), "same": (("ADVP", "PRT"),), "quotes": ()}


def scan(line, how):
    """(length, [[word, tag]], [[start, end, label]], [[tag, word, place, brackets so far, open ones]]) of a line."""
    terminals, brackets, marks, open_ones, length, i = [], [], [], [], 0, 0
    while i < len(line):
        if line[i] == "(":
            i += 1
            label = ""
            while i < len(line) and line[i] not in " ()":
                label += line[i]
                i += 1
            j, word = i, ""
            if line[j] == " ":
                while line[j] == " ":
                    j += 1
                while line[j] not in " ()":
                    word += line[j]
                    j += 1
                if line[j] == ")":
                    if label not in how["not_counted"]:
                        length += 1
                    if label in how["quotes"] and word in "'\"/":
                        marks.append([label, word, len(terminals), len(brackets), list(open_ones)])
                    if label not in how["deleted"]:
                        terminals.append([word, label])
                    i = j + 1
                    continue
            open_ones.append(len(brackets))
            brackets.append([len(terminals), None, label])
        else:
            if line[i] == ")":
                brackets[open_ones.pop()][1] = len(terminals)
            i += 1
    return length, terminals, brackets, marks


def same(a, b, how):
    return a == b or any({a, b} == set(pair) for pair in how["same"])


def insert(terminals, brackets, marks, k):
    tag, word, place, so_far, around = marks[k]
    terminals.insert(place, [word, tag])
    for number, bracket in enumerate(brackets):
        if number >= so_far:
            bracket[0] += 1
            bracket[1] += 1
        elif number in around:
            bracket[1] += 1
    for mark in marks[k:]:
        mark[2] += 1


def line_of(gold, test, how=COLLINS):
    """(length, status, matched, gold brackets, test brackets, crossing, words, right tags) of two lines."""
    length, t1, b1, m1 = scan(gold, how)
    _, t2, b2, m2 = scan(test, how)
    if not t2:
        return (length, 2, 0, 0, 0, 0, 0, 0)
    if len(t1) != len(t2):
        for i in range(len(m2)):
            place = m2[i][2]
            for j in range(len(m1)):
                if m1[j][2] == place and m1[j][0] != m2[i][0]:
                    if m1[j][0] in how["deleted"] and m2[i][0] not in how["deleted"]:
                        insert(t1, b1, m1, j)
                    elif m2[i][0] in how["deleted"] and m1[j][0] not in how["deleted"]:
                        insert(t2, b2, m2, i)
    if len(t1) != len(t2) or any(x[0] != y[0] for x, y in zip(t1, t2, strict=True)):
        return (length, 1, 0, 0, 0, 0, 0, 0)
    for brackets in (b1, b2):
        for bracket in brackets:
            label = ""
            for c in bracket[2]:
                if c in "-=":
                    break
                label += c
            drop = bracket[0] == bracket[1] or any(same(label, name, how) for name in how["deleted"])
            bracket[2:] = [label, "out" if drop else "free"]
    matched = 0
    for x in b1:
        for y in b2:
            if x[3] != "out" and y[3] == "free" and x[:2] == y[:2] and same(x[2], y[2], how):
                y[3] = "taken"
                matched += 1
                break
    crossing = 0
    for y in b2:
        for x in b1:
            if "out" not in (x[3], y[3]) and (x[0] < y[0] < x[1] < y[1] or y[0] < x[0] < y[1] < x[1]):
                crossing += 1
                break
    sizes = [sum(bracket[3] != "out" for bracket in brackets) for brackets in (b1, b2)]
    tags = sum(same(x[1], y[1], how) for x, y in zip(t1, t2, strict=True))
    return (length, 0, matched, *sizes, crossing, len(t1), tags)
