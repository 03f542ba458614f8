"""A reference implementation of EVALB for tests: it reads lines character by character and compares all brackets.

It follows EVALB's algorithm and shares no code with train/tasks/parsing/evalb.py.
"""

DELETED = ("TOP", "-NONE-", ",", ":", "``", "''", ".")
COLLINS = {"deleted": DELETED, "not_counted": ("-NONE-",), "same": (("ADVP", "PRT"),), "quotes": ()}


def scan(line, parameters):
    """Parse a line.

    Returns its length, terminals [[word, tag]], brackets [[start, end, label]] and quotation marks
    [[tag, word, position, number of brackets before it, open brackets]].
    """
    terminals, brackets, marks, open_brackets, length, i = [], [], [], [], 0, 0
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
                    if label not in parameters["not_counted"]:
                        length += 1
                    if label in parameters["quotes"] and word in "'\"/":
                        marks.append([label, word, len(terminals), len(brackets), list(open_brackets)])
                    if label not in parameters["deleted"]:
                        terminals.append([word, label])
                    i = j + 1
                    continue
            open_brackets.append(len(brackets))
            brackets.append([len(terminals), None, label])
        else:
            if line[i] == ")":
                brackets[open_brackets.pop()][1] = len(terminals)
            i += 1
    return length, terminals, brackets, marks


def same(a, b, parameters):
    return a == b or any({a, b} == set(pair) for pair in parameters["same"])


def insert(terminals, brackets, marks, k):
    tag, word, position, n_before, enclosing = marks[k]
    terminals.insert(position, [word, tag])
    for number, bracket in enumerate(brackets):
        if number >= n_before:
            bracket[0] += 1
            bracket[1] += 1
        elif number in enclosing:
            bracket[1] += 1
    for mark in marks[k:]:
        mark[2] += 1


def reference_score(gold, test, parameters=COLLINS):
    """Return (length, status, matched, gold brackets, test brackets, crossing, words, correct tags) of two lines."""
    length, t1, b1, m1 = scan(gold, parameters)
    _, t2, b2, m2 = scan(test, parameters)
    if not t2:
        return (length, 2, 0, 0, 0, 0, 0, 0)
    if len(t1) != len(t2):
        for i in range(len(m2)):
            position = m2[i][2]
            for j in range(len(m1)):
                if m1[j][2] == position and m1[j][0] != m2[i][0]:
                    if m1[j][0] in parameters["deleted"] and m2[i][0] not in parameters["deleted"]:
                        insert(t1, b1, m1, j)
                    elif m2[i][0] in parameters["deleted"] and m1[j][0] not in parameters["deleted"]:
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
            drop = bracket[0] == bracket[1] or any(same(label, name, parameters) for name in parameters["deleted"])
            bracket[2:] = [label, "out" if drop else "free"]
    matched = 0
    for x in b1:
        for y in b2:
            if x[3] != "out" and y[3] == "free" and x[:2] == y[:2] and same(x[2], y[2], parameters):
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
    tags = sum(same(x[1], y[1], parameters) for x, y in zip(t1, t2, strict=True))
    return (length, 0, matched, *sizes, crossing, len(t1), tags)
