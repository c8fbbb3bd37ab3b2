"""Lists of requests kept in order of a key, ties by (arrival, luck, number), as rows of plain arrays.

How policies that change their order each step stay within a few times first come, first served:

* an order that time alone can't change is read once, when a request joins the queue (``memory.join_queue``: a
  binary search and a shift); one that can is read again only when a step could take somebody and, unless the
  policy is ``dynamic``, not before its own ``wake`` time (``admission.scan_queue``);
* a row that was read again is mostly the old row in a few long stretches: a tenant's turn moved one block behind
  another, a level was lifted, a deadline passed. ``sort`` merges these stretches and touches nothing outside
  the places that changed, so r stretches of n requests cost n * log2(r), and a row in order n comparisons;
* the running batch is sorted only if tokens or blocks don't reach everybody (``engine.rank_batch``).

`windtunnel bench schedulers` prints what that comes to.
"""

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
    low = first_after(table, key, row, (0, count), request)
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
    """Sort ``row[:count]`` by merging the stretches that are in order already, two by two.

    A row in order, the usual case, costs one pass; r such stretches cost log2(r) passes, as little as comparing
    can. ``spare`` has room for ``count``.
    """
    runs = count
    while runs > 1:
        start, runs = 0, 0
        while start < count:
            middle = run_end(table, key, row, start, count)
            stop = run_end(table, key, row, middle, count)
            if middle < stop:
                merge(table, key, row, (start, middle, stop), spare)
            start, runs = stop, runs + 1


def run_end(table: Requests, key: Floats, row: Ints, start: int, count: int) -> int:
    """Place behind the longest stretch from ``start`` on that is in order."""
    place = start + 1
    while place < count and not before(table, key, row[place], row[place - 1]):
        place += 1
    return min(place, count)


def merge(table: Requests, key: Floats, row: Ints, places: tuple[int, int, int], spare: Ints) -> None:
    """Merge two neighbouring stretches, ``row[start:middle]`` and ``row[middle:stop]``, in place.

    What is in its place already at either end isn't touched: one request that changed its place costs the
    way that it goes.
    """
    start, middle, stop = places
    start = first_after(table, key, row, (start, middle), row[middle])
    stop = first_after(table, key, row, (middle, stop), row[middle - 1])
    for place in range(start, middle):
        spare[place] = row[place]
    left, right, place = start, middle, start
    while left < middle and right < stop:
        if before(table, key, row[right], spare[left]):
            row[place] = row[right]
            right += 1
        else:
            row[place] = spare[left]
            left += 1
        place += 1
    while left < middle:
        row[place] = spare[left]
        left += 1
        place += 1


def first_after(table: Requests, key: Floats, row: Ints, places: tuple[int, int], request: int) -> int:
    """First place in a stretch that is in order whose request comes after this one; the stretch's end if none."""
    low, high = places
    while low < high:
        middle = (low + high) // 2
        if before(table, key, request, row[middle]):
            high = middle
        else:
            low = middle + 1
    return low
