"""Columns that fit into a width, and sections that fit into a height. Rich's own tables would wrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size
from rich.text import Text

#: The smallest width of a column that is cut.
_LEAST = 16
_GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """`goes`: in a narrow window the highest number is left out first, 0 never. `cut`: the end that may be cut."""

    title: str
    goes: int = 0
    right: bool = False
    cut: str = ""


def grid(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """A head and one line per row, none wider than `width`. Empty columns are left out."""
    kept = [at for at, one in enumerate(columns) if not one.goes or any(row[at].plain for row in rows)]
    widths = {at: max([cell_len(columns[at].title), *(row[at].cell_len for row in rows)]) for at in kept}
    while _taken(columns, widths) > width and (goes := max(widths, key=lambda at: columns[at].goes)):
        if not columns[goes].goes:
            break
        del widths[goes]
    _narrow(columns, widths, width)
    head = [Text(columns[at].title, "dim") for at in widths]
    return [_line(columns, widths, cells, width) for cells in (head, *([row[at] for at in widths] for row in rows))]


def _taken(columns: Sequence[Column], widths: dict[int, int]) -> int:
    """The width that the columns need at least."""
    return sum(min(wide, _LEAST) if columns[at].cut else wide for at, wide in widths.items()) + _gaps(widths)


def _gaps(widths: dict[int, int]) -> int:
    return _GAP * (len(widths) - 1)


def _narrow(columns: Sequence[Column], widths: dict[int, int], width: int) -> None:
    """Cuts the widest column first."""
    giving = [at for at in widths if columns[at].cut]
    while giving and (over := sum(widths.values()) + _gaps(widths) - width) > 0:
        first, *others = sorted(giving, key=lambda at: -widths[at])
        step = min(over, max(1, widths[first] - (widths[others[0]] if others else 1)))
        if widths[first] - step < 1:
            return
        widths[first] -= step


def _line(columns: Sequence[Column], widths: dict[int, int], cells: Sequence[Text], width: int) -> Text:
    line = Text(no_wrap=True)
    for place, (at, cell) in enumerate(zip(widths, cells, strict=True)):
        column, last = columns[at], place == len(widths) - 1
        shown = short(cell, widths[at], column.cut == "left")
        space = " " * (widths[at] - shown.cell_len)
        line.append_text(Text("" if place == 0 else " " * _GAP))
        line.append_text(Text(space) + shown if column.right else shown)
        if not column.right and not last:
            line.append(space)
    line.rstrip()
    return short(line, width)


def short(text: Text, width: int, left: bool = False) -> Text:
    """Cuts to a width, at the end or the beginning: the end of a dotted name says more than its beginning."""
    if text.cell_len <= width:
        return text
    if not left:
        cut = text.copy()
        cut.truncate(max(1, width), overflow="ellipsis")
        return cut
    plain = text.plain
    start = len(plain)
    taken = 1
    while start > 0 and taken + cell_len(plain[start - 1]) <= width:
        start -= 1
        taken += cell_len(plain[start])
    return Text(set_cell_size("…", min(1, width)) + plain[start:], style=text.style)


def wrapped(text: Text, width: int, indent: int, most: int = 2) -> list[Text]:
    """Lines below a row, not more than `most`."""
    room = max(8, width - indent)
    if text.cell_len <= room:
        found = [text]
    else:
        found, rest = [], text.plain
        while rest and len(found) < most - 1 and cell_len(rest) > room:
            part = set_cell_size(rest, room).rstrip()
            at = part.rfind(" ")
            part = part[:at] if at > room // 2 else part
            found.append(Text(part, style=text.style))
            rest = rest[len(part) :].lstrip()
        if rest:
            found.append(short(Text(rest, style=text.style), room))
    return [short(Text(" " * indent) + line, width) for line in found]


@dataclass
class Section:
    """Rows of one kind: a head, a block of lines for each row, and the number of all rows. `brief`: shown instead if
    there is no space for rows."""

    head: list[Text]
    blocks: list[list[Text]]
    total: int
    brief: list[Text] = field(default_factory=list)

    @property
    def wants(self) -> int:
        return sum(map(len, self.blocks)) + (self.total > len(self.blocks))

    @property
    def least(self) -> int:
        """The lines of the first row, and of the number of others."""
        return sum(map(len, self.blocks[:1])) + (self.total > 1)

    def lines(self, most: int) -> list[Text]:
        """As many whole rows as fit, at least one, and the number of others."""
        if self.wants <= most:
            rest = self.total - len(self.blocks)
            return [*self.head, *(line for block in self.blocks for line in block), *_more(rest)]
        room = max(1, most - 1)
        shown: list[Text] = []
        count = 0
        for block in self.blocks:
            if count and len(shown) + len(block) > room:
                break
            shown += block
            count += 1
        return [*self.head, *shown, *_more(self.total - count)]


def _more(count: int) -> list[Text]:
    return [Text(f"… {count} more", "dim")] if count else []


def abridged(sections: Sequence[Section], height: int) -> list[Section]:
    """If there is little space, the last sections are shown in brief."""
    kept = list(sections)
    for at in reversed(range(len(kept))):
        if kept[at].brief and _needed(kept) > height:
            kept[at] = Section(kept[at].brief, [], 0)
    return kept


def most_important(sections: Sequence[Section], height: int) -> list[Section]:
    """The sections that fit: the last ones are left out first."""
    kept = list(sections)
    while len(kept) > 1 and _needed(kept) > height:
        kept.pop()
    return kept


def _needed(sections: Sequence[Section]) -> int:
    return sum(len(one.head) + one.least for one in sections)


def shared(sections: Sequence[Section], height: int) -> list[int]:
    """How many lines each section gets below its head: one line each in turn, until there are none left."""
    found = [min(one.least, one.wants) for one in sections]
    room = height - sum(len(one.head) for one in sections) - sum(found)
    while room > 0 and (wanting := [at for at, one in enumerate(sections) if one.wants > found[at]]):
        for at in wanting[:room]:
            found[at] += 1
        room -= len(wanting)
    return found
