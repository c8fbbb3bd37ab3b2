"""Lists of requests kept in order of a key, ties by (arrival, luck, number), as rows of plain arrays."""

from schedulers.view import Floats, Ints, Requests


def before(table: Requests, key: Floats, a: int, b: int) -> bool:
    """True if request a comes before request b."""
    if key[a] != key[b]:
        return bool(key[a] < key[b])
    if table.arrival_s[a] != table.arrival_s[b]:
        return bool(table.arrival_s[a] < table.arrival_s[b])
    if table.luck[a] != table.luck[b]:
        return bool(table.luck[a] < table.luck[b])
    return a < b


def insert(table: Requests, key: Floats, row: Ints, count: int, request: int) -> None:
    """Put a request in its place in ``row[:count]``, which is in order; ``row`` has room for one more."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if before(table, key, request, row[middle]):
            high = middle
        else:
            low = middle + 1
    for place in range(count, low, -1):
        row[place] = row[place - 1]
    row[low] = request


def remove_at(row: Ints, count: int, place: int) -> None:
    """Take out one place and close the gap."""
    for later in range(place, count - 1):
        row[later] = row[later + 1]


def find(row: Ints, count: int, request: int) -> int:
    """Place of a request in a row, -1 if it isn't there."""
    for place in range(count):
        if row[place] == request:
            return place
    return -1


def sort(table: Requests, key: Floats, row: Ints, count: int, spare: Ints) -> None:
    """Sort ``row[:count]``; a row that is nearly in order, the usual case, costs one pass."""
    drops = 0
    for place in range(1, count):
        if before(table, key, row[place], row[place - 1]):
            drops += 1
    if drops == 0:
        return
    if drops > 8 and count > 32:
        merge_sort(table, key, row, count, spare)
        return
    for place in range(1, count):
        request, slot = row[place], place
        while slot > 0 and before(table, key, request, row[slot - 1]):
            row[slot] = row[slot - 1]
            slot -= 1
        row[slot] = request


def merge_sort(table: Requests, key: Floats, row: Ints, count: int, spare: Ints) -> None:
    """Bottom-up merge sort: no worst case, the same comparisons compiled and interpreted."""
    width = 1
    while width < count:
        for start in range(0, count, 2 * width):
            middle, stop = min(start + width, count), min(start + 2 * width, count)
            left, right = start, middle
            for place in range(start, stop):
                if left < middle and (right >= stop or not before(table, key, row[right], row[left])):
                    spare[place] = row[left]
                    left += 1
                else:
                    spare[place] = row[right]
                    right += 1
        for place in range(count):
            row[place] = spare[place]
        width *= 2
