"""Pictures of what happens inside a query: rows that walk through a plan, rows that meet in a join, state, buckets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from krishiv_py.ui import boxes
from scripts.docs.drawing import BAR, LATE, LEFT, OTHER, RIGHT, ROW, WIDTH, Axis, Picture

Namespace: TypeAlias = dict[str, Any]

_COLOURS: Final = {"x": ROW, "y": OTHER, "z": LATE}
_HIGH, _GAP = 50.0, 30.0
_BEGIN, _STEP, _REST = 0.6, 0.9, 3.0
"""Seconds before the first batch comes, at each box, and after the last one."""


def walk(made: Namespace) -> Picture:
    """Draw a plan as a graph, and next to each box what each batch did there; a frame goes along with the batches.

    Who asks for less motion sees no frame, and all numbers alike.
    """
    plan, batches = boxes(made["per_ad"]._plan("in_process")), made["walked"]
    depths: list[int] = []
    for box in plan:
        depths.append(1 + max((depths[n] for n in box.inputs), default=-1))
    right, column, top, deep = 204.0, 40.0, 30.0, max(depths) + 1
    whole = _BEGIN + _STEP * len(batches) * deep + _REST
    picture = Picture(height=top + deep * (_HIGH + _GAP) - _GAP + 6)
    levels = [top + depth * (_HIGH + _GAP) for depth in range(deep)]
    frames = [_moments([_BEGIN + _STEP * (n * deep + depth) for n in range(len(batches))], whole) for depth in range(deep)]
    styles = [f"@keyframes box{depth}{{{moments}}}" for depth, moments in enumerate(frames)]
    places = list[tuple[float, float, float]]()
    for number, (box, depth) in enumerate(zip(plan, depths, strict=True)):
        row = [n for n, other in enumerate(depths) if other == depth]
        wide = (right - LEFT - 8 * (len(row) - 1)) / len(row)
        x, y = LEFT + row.index(number) * (wide + 8), levels[depth]
        places.append((x, y, wide))
        for before in box.inputs:
            middle = places[before][0] + places[before][2] / 2
            _arrow(picture, middle, places[before][1] + _HIGH, y)
        stroke = {"source": ROW, "stage": BAR}.get(box.kind, OTHER)
        frame = {"x": x, "y": y, "width": wide, "height": _HIGH, "rx": 6.0, "stroke": stroke}
        picture.put("rect", **frame, fill=stroke, fill_opacity=0.12)
        moves = f"animation:box{depth} {whole:g}s linear infinite"
        picture.put("rect", **frame, fill="none", stroke_width=4.0, opacity=0.0, style=moves)
        words = [box.name, box.detail.partition(",")[0]] if box.kind == "stage" else [box.name]
        for line, text in enumerate(words):
            picture.write(
                text, x + wide / 2, y + _HIGH / 2 + 5 - 9 * (len(words) - 1) + 18 * line, size=14 if line == 0 else 13
            )
    picture.write("batch", right + 8, 16.0, "start", size=14)
    labels = [["left", "right"], *[["gives", "keeps"]] * (deep - 2), ["rows"]]
    for depth, names in enumerate(labels):
        for line, name in enumerate(names):
            y = levels[depth] + _HIGH / 2 + 5 - 10 * (len(names) - 1) + 20 * line
            picture.write(name, right + 8, y, "start", size=14)
            for n, batch in enumerate(batches):
                first = 100 * (_BEGIN + _STEP * (n * deep + depth)) / whole
                styles.append(f"@keyframes n{n}{depth}{{0%,{first:.1f}%{{opacity:.3}}{first + 1:.1f}%{{opacity:1}}}}")
                moves = f"animation:n{n}{depth} {whole:g}s linear infinite"
                given = f"fill:{BAR};font-weight:bold;" if name in ("gives", "rows") else ""
                style = f"font-size:15px;{given}{moves}"
                x = right + 68 + column * n
                picture.put("text", str(batch[depth][line]), x=x, y=y, text_anchor="middle", class_="ink", style=style)
    for n in range(len(batches)):
        picture.write(f"{n + 1}", right + 68 + column * n, 16.0, size=14)
    picture.style = "".join(styles) + "@media(prefers-reduced-motion:reduce){*{animation:none!important}}"
    return picture


def _moments(begins: Sequence[float], whole: float) -> str:
    """Return the key frames of what is there for a moment at each of these seconds."""
    frames = ["0%{opacity:0}"]
    for begin in begins:
        share = 100 * begin / whole
        ends = share + 100 * _STEP / whole
        frames.append(f"{share:.1f}%{{opacity:0}}{share + 0.5:.1f}%,{ends - 0.5:.1f}%{{opacity:1}}{ends:.1f}%{{opacity:0}}")
    return "".join([*frames, "100%{opacity:0}"])


def _arrow(to: Picture, x: float, top: float, bottom: float) -> None:
    """Draw an arrow downwards."""
    to.line(x, top, x, bottom - 6)
    to.put("path", d=f"M{x:g} {bottom:g}l-4 -8h8z", class_="ink")


def _joined(
    names: tuple[str, str],
    left: tuple[list[dict[str, Any]], str],
    right: tuple[list[dict[str, Any]], str],
    results: list[dict[str, Any]],
    last: float,
    wedge: float = 0.0,
    width: float = 0.0,
) -> Picture:
    """Draw the rows of two streams on two lines of time, with a line from each left row to each right row that it meets.

    A side is its rows and the column of their time. A row that meets none is hollow. A left row looks for partners so many
    seconds ahead, which is a wedge; windows of so many seconds are boxes.
    """
    picture, axis = Picture(height=152.0), Axis(0.0, last, left=LEFT + 74, right=WIDTH - RIGHT - 12)
    upper, lower, sides = 16.0, 100.0, (left, right)
    for n in range(round(last / width) if width else 0):
        x, end = axis.x(n * width), axis.x((n + 1) * width)
        picture.put("rect", x=x + 2, y=2.0, width=end - x - 4, height=112.0, rx=5.0, fill=BAR, opacity=0.1 if n % 2 else 0.18)
    key = next(iter(left[0][0]))
    for row in left[0] if wedge else []:
        x = axis.x(row[left[1]] / 1_000)
        points = f"{x:g},{upper:g} {x:g},{lower:g} {axis.x(min(row[left[1]] / 1_000 + wedge, last)):g},{lower:g}"
        picture.put("polygon", points=points, fill=_COLOURS[row[key]], opacity=0.15)
    for y, name in ((upper, names[0]), (lower, names[1])):
        picture.line(axis.left - 14, y, WIDTH - RIGHT, y)
        picture.write(name, LEFT, y + 5, "start", size=14)
    met = [{(row[key], row[side[1]]) for row in results if None not in (row[left[1]], row[right[1]])} for side in sides]
    for row in results:
        if None not in (row[left[1]], row[right[1]]):
            x1, x2 = (axis.x(row[side[1]] / 1_000) for side in sides)
            picture.put("line", x1=x1, y1=upper, x2=x2, y2=lower, stroke=BAR, stroke_width=3.0)
    for (rows, time), y, partners in zip(sides, (upper, lower), met, strict=True):
        for row in rows:
            x, colour, alone = axis.x(row[time] / 1_000), _COLOURS[row[key]], (row[key], row[time]) not in partners
            shape = {"class_": "page", "stroke": colour, "stroke_width": 2.0} if alone else {"fill": colour}
            picture.put("circle", cx=x, cy=y, r=10.0, **shape)
            picture.write(row[key], x, y + 5, fill=None if alone else "#fff", size=14)
    for n in range(6) if not width else range(round(last / width) + 1):
        tick = n * (width or last / 5)
        picture.line(axis.x(tick), lower, axis.x(tick), lower + 30, stroke_dasharray="2 3", opacity=0.5)
        picture.write(f"{tick:g}", axis.x(tick), lower + 44)
    picture.write("seconds", LEFT, lower + 44, "start")
    return picture


def interval(made: Namespace) -> Picture:
    """Draw an interval join: where each left row looks, and which rows it meets."""
    return _joined(("shown", "clicked"), (made["views"], "at"), (made["clicks"], "clicked"), made["pairs"], 25.0, wedge=10.0)


def asof(made: Namespace) -> Picture:
    """Draw an as-of join: each left row and the right row that it was given."""
    return _joined(("trades", "quotes"), (made["sales"], "at"), (made["prices"], "quoted"), made["valued"], 10.0)


def same_window(made: Namespace) -> Picture:
    """Draw a window join: rows of both sides in one window meet."""
    return _joined(("bids", "views"), (made["offers"], "at"), (made["visits"], "seen"), made["met"], 30.0, width=10.0)


def open_windows(made: Namespace) -> Picture:
    """Draw the windows that are open after each batch, those that fired, and below the files that the batch has written."""
    batches, picture = made["batches"], Picture()
    left, base, bottom = 92.0, 150.0, 190.0
    step = (WIDTH - RIGHT - left) / len(batches)
    most = max(one["open"] for one in batches)
    unit = 110.0 / most
    picture.write("open windows", LEFT, 22.0, "start", size=14)
    for value in range(0, most + 1, 2):
        y = base - unit * value
        picture.line(left - 6, y, WIDTH - RIGHT, y, stroke_dasharray="2 3" if value else "", opacity=0.5)
        picture.write(str(value), left - 12, y + 5, "end", size=13)
    for n, one in enumerate(batches):
        x, wide = left + step * n + 5, step - 10
        changed, untouched = one["changed"] * unit, (one["open"] - one["changed"]) * unit
        picture.put("rect", x=x, y=base - untouched, width=wide, height=untouched, fill=BAR, opacity=0.35)
        picture.put("rect", x=x, y=base - untouched - changed, width=wide, height=changed, fill=BAR)
        if one["fired"]:
            picture.write(f"−{one['fired']}", x + wide / 2, base + 18, fill=LATE, size=14)
        picture.write(f"{n + 1}", x + wide / 2, bottom + 4, size=13)
    picture.write("fired", LEFT, base + 18, "start", LATE, size=14)
    picture.write("batch", LEFT, bottom + 4, "start", size=14)
    for row, name in enumerate(("offsets", "results", "state")):
        y = bottom + 28 + 24 * row
        picture.write(name, LEFT, y, "start", size=14)
        for n, one in enumerate(batches):
            x = left + step * (n + 0.5)
            if name == "results" and not one["fired"]:
                picture.line(x - 4, y - 5, x + 4, y - 5)
            elif name == "results" or name in one["written"]:
                picture.put("rect", x=x - 7, y=y - 12, width=14.0, height=14.0, rx=3.0, fill=LATE if name == "results" else ROW)
    legend = bottom + 28 + 24 * 3 + 6
    picture.put("rect", x=LEFT, y=legend - 11, width=12.0, height=12.0, fill=BAR)
    picture.write("changed by this batch", LEFT + 18, legend, "start", size=13)
    picture.put("rect", x=LEFT + 190, y=legend - 11, width=12.0, height=12.0, fill=BAR, opacity=0.35)
    picture.write("open, not touched", LEFT + 208, legend, "start", size=13)
    picture.height = legend + 10
    return picture


_BUCKETS: Final = (ROW, BAR, LATE, OTHER)


def buckets(made: Namespace) -> Picture:
    """Draw keys in the middle, and the buckets that hold them: of two workers on the left, of four on the right."""
    two, four = made["kept"][2], made["kept"][4]
    keys = sorted((key for bucket in four for key in bucket), key=str)
    picture, top, row = Picture(), 44.0, 30.0
    picture.height = top + row * len(keys) + 6
    place = {key: top + row * n + row / 2 for n, key in enumerate(keys)}
    for title, x in (("with 2 workers", 60.0), ("keys", WIDTH / 2), ("with 4 workers", WIDTH - 60.0)):
        picture.write(title, x, 20.0, size=14)
    for groups, x, side in ((two, LEFT, 1.0), (four, WIDTH - RIGHT - 92, -1.0)):
        high = row * len(keys) / len(groups)
        for n, bucket in enumerate(groups):
            y, colour = top + high * n, _BUCKETS[n]
            for key in bucket:
                to_x = x + 92 if side > 0 else x
                picture.put(
                    "line", x1=WIDTH / 2 - side * 24, y1=place[key], x2=to_x, y2=y + high / 2, stroke=colour, stroke_width=2.0
                )
            picture.put(
                "rect", x=x, y=y + 3, width=92.0, height=high - 6, rx=6.0, fill=colour, fill_opacity=0.15, stroke=colour
            )
            picture.write(f"bucket {n}", x + 46, y + high / 2 - 3, size=14)
            picture.write(f"worker {n}", x + 46, y + high / 2 + 15, size=13)
    for key in keys:
        picture.write(key, WIDTH / 2, place[key] + 5, size=14)
    return picture


def sequence(made: Namespace) -> Picture:
    """Draw rows as they arrive, and below the same rows in order of time with the timer that each of them moves."""
    axis, picture, length = Axis(0.0, 75.0, left=92.0), Picture(height=196.0), 30.0
    arrived, fired = made["arrived"], [row["at"] // 1_000 for batch in made["given"] for row in batch]
    picture.write("arrives", LEFT, 31.0, "start", size=14)
    for place, second in enumerate(arrived):
        x, to = 120.0 + 58.0 * place, axis.x(float(second))
        picture.put("circle", cx=x, cy=26.0, r=5.0, fill=ROW)
        picture.write(f"{second}", x, 14.0)
        picture.line(x, 36.0, to, 76.0, stroke_dasharray="3 4", opacity=0.5)
    picture.write("is called", LEFT, 89.0, "start", size=14)
    for lane, second in enumerate(sorted(arrived)[:-1]):
        x, end, y = axis.x(float(second)), axis.x(second + length), 108.0 + 13.0 * lane
        moved = second + int(length) not in fired
        picture.put(
            "rect", x=x, y=y, width=end - x, height=5.0, rx=2.5, fill=LATE if moved else BAR, opacity=0.35 if moved else 0.8
        )
    picture.write("timer", LEFT, 126.0, "start", size=14)
    for second in arrived:
        picture.put("circle", cx=axis.x(float(second)), cy=84.0, r=5.0, fill=ROW)
    for second in fired:
        x = axis.x(float(second))
        picture.put("path", d=f"M{x:g} 76 l8 8 l-8 8 l-8 -8 z", fill=BAR)
        picture.write("on_timer", x, 70.0, size=14, fill=BAR)
    axis.draw(picture, 156.0, [0.0, 20.0, 40.0, 60.0], lambda t: f"{t:g}")
    picture.write("event time, seconds", WIDTH - RIGHT, 190.0, "end", size=14)
    return picture


def pattern(made: Namespace) -> Picture:
    """Draw the rows of a card in order of time, and the match among them."""
    axis, picture = Axis(-4.0, 101.0, left=92.0), Picture(height=150.0)
    rows = sorted((at, kind, amount) for kind, amount, at in made["sent"])
    matches = [(row["match_start"] / 1_000, row["match_end"] / 1_000) for row in made["given"].to_pylist()]
    for begin, end in matches:
        x, to = axis.x(begin) - 14, axis.x(end) + 14
        picture.put("rect", x=x, y=34.0, width=to - x, height=38.0, rx=8.0, fill=BAR, fill_opacity=0.15, stroke=BAR)
        picture.write("match", (x + to) / 2, 26.0, size=14, fill=BAR)
    picture.write("rows of a", LEFT, 57.0, "start", size=14)
    for at, kind, amount in rows:
        x, wanted = axis.x(float(at)), any(begin <= at <= end for begin, end in matches) and kind == "buy"
        confirms = kind == "confirm"
        picture.put("circle", cx=x, cy=53.0, r=5.0, fill=LATE if confirms else ROW, opacity=1.0 if wanted or confirms else 0.4)
        label = str(amount) if kind == "buy" else kind
        if confirms:
            picture.write(label, x, 92.0, size=13, fill=LATE)
        else:
            picture.write(label, x, 92.0, size=13)
    axis.draw(picture, 110.0, [0.0, 20.0, 40.0, 60.0, 80.0], lambda t: f"{t:g}")
    picture.write("event time, seconds", WIDTH - RIGHT, 144.0, "end", size=14)
    return picture


def content(made: Namespace) -> Picture:
    """Draw batches of rows, the changes that each of them gives, and the table after it."""
    picture, table = Picture(height=212.0), dict[str, int]()
    for text, y in (("rows", 34.0), ("changes", 88.0), ("table", 160.0)):
        picture.write(text, LEFT, y, "start", size=14)
    for number, (batch, changes) in enumerate(zip(made["sent"], made["given"], strict=True)):
        x = 140.0 + 108.0 * number
        for line, (customer, amount) in enumerate(batch):
            picture.write(f"{customer} {amount}", x, 26.0 + 17.0 * line, fill=ROW)
        for line, (op, customer, total) in enumerate(changes):
            picture.write(f"{op} {customer} {total}", x, 80.0 + 17.0 * line, fill=LATE if op.startswith("-") else BAR)
            if op.startswith("+"):
                table[customer] = total
        picture.put("rect", x=x - 44, y=122.0, width=88.0, height=62.0, rx=6.0, fill=BAR, fill_opacity=0.1, stroke=BAR)
        for line, (customer, total) in enumerate(sorted(table.items())):
            picture.write(f"{customer} {total}", x, 140.0 + 17.0 * line)
        picture.write(f"batch {number + 1}", x, 204.0, size=14)
    return picture


def capture(made: Namespace) -> Picture:
    """Draw the records of a changelog, the changes that each of them gives, and the table in the end."""
    picture, table = Picture(height=222.0), dict[int, str]()
    for text, x in (("records", LEFT), ("changes", 190.0), ("table", 330.0)):
        picture.write(text, x, 18.0, "start", size=14)
    for number, (record, changes) in enumerate(zip(made["sent"], made["given"], strict=True)):
        y, row = 44.0 + 30.0 * number, record["after"] or record["before"]
        picture.write(f"{record['source']['lsn']}", LEFT, y, "start")
        picture.write(f"{record['op']}   {row['id']} {row['city']}", LEFT + 26, y, "start", ROW)
        if not changes:
            picture.write("stale", 190.0, y, "start")
        for place, (op, key, city) in enumerate(changes):
            at = y + 15.0 * place - 7.5 * (len(changes) - 1)
            picture.write(f"{op} {key} {city}", 190.0, at, "start", LATE if op.startswith("-") else BAR)
            if op.startswith("-"):
                table.pop(key, None)
            else:
                table[key] = city
        picture.line(118.0, y - 4, 178.0, y - 4, stroke_dasharray="3 4", opacity=0.5)
    picture.put("rect", x=322.0, y=84.0, width=84.0, height=62.0, rx=6.0, fill=BAR, fill_opacity=0.1, stroke=BAR)
    picture.line(272.0, 115.0, 316.0, 115.0, stroke_dasharray="3 4", opacity=0.5)
    for line, (key, city) in enumerate(sorted(table.items())):
        picture.write(f"{key} {city}", 364.0, 110.0 + 20.0 * line)
    return picture


def silence(made: Namespace) -> Picture:
    """Draw the rows of a key, how long after each it is absent, and what was reported."""
    axis, picture, after = Axis(-3.0, 150.0, left=92.0), Picture(height=150.0), 60.0
    rows, said = sorted(at for device, at in made["sent"] if device == "a"), made["said"]
    picture.write("rows of a", LEFT, 51.0, "start", size=14)
    for at, following in zip(rows, [*rows[1:], None], strict=True):
        x = axis.x(float(at))
        end = axis.x(min(at + after, 150.0 if following is None else float(following)))
        picture.put("rect", x=x, y=58.0, width=end - x, height=5.0, rx=2.5, fill=BAR, opacity=0.35)
        picture.put("circle", cx=x, cy=46.0, r=5.0, fill=ROW)
    picture.write("reports", LEFT, 93.0, "start", size=14)
    for _, at, state in said:
        x, colour = axis.x(float(at)), LATE if state == "absent" else BAR
        picture.put("path", d=f"M{x:g} 80 l8 8 l-8 8 l-8 -8 z", fill=colour)
    absent = [at for _, at, state in said if state == "absent"]
    back = [at for _, at, state in said if state == "recovered"]
    begin, end = axis.x(float(absent[0])), axis.x(float(back[0]))
    picture.put("rect", x=begin, y=58.0, width=end - begin, height=5.0, rx=2.5, fill=LATE, opacity=0.6)
    picture.write("absent", begin - 4, 20.0, "end", LATE, size=14)
    picture.write("recovered", end + 4, 20.0, "start", BAR, size=14)
    for x in (begin, end):
        picture.line(x, 24.0, x, 78.0, stroke_dasharray="3 4", opacity=0.5)
    axis.draw(picture, 110.0, [0.0, 40.0, 80.0, 120.0], lambda t: f"{t:g}")
    picture.write("event time, seconds", WIDTH - RIGHT, 144.0, "end", size=14)
    return picture
