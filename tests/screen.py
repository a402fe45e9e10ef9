"""What a person sees on a terminal: a screen that understands as much as our output needs, and a film of it as SVG."""

from __future__ import annotations

import html
import re

Cell = tuple[str, int | None]  # a character and its colour

_TOKEN = re.compile(
    r"\x1b\[(\??)([0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|([\r\n\x08])|([^\x1b\r\n\x08]+)|(\x1b)", re.DOTALL
)
PALETTE = {
    30: "#2b2b2b",
    31: "#f07178",
    32: "#8bd49c",
    33: "#e5c07b",
    34: "#82aaff",
    35: "#c792ea",
    36: "#7fdbca",
    90: "#7f8c98",
    91: "#ff8b92",
    92: "#a9f0b9",
    93: "#ffe0a3",
    94: "#a6c4ff",
    95: "#ddb3ff",
    96: "#a5fff0",
}


class Screen:
    """Rows of characters, as many as were ever written: it does not scroll away."""

    def __init__(self, width: int) -> None:
        self.width, self.row, self.column, self.colour = width, 0, 0, None
        self.rows: list[list[Cell]] = [[]]
        self.colour: int | None

    def feed(self, text: str) -> None:
        for match in _TOKEN.finditer(text):
            private, numbers, command, control, plain, _ = match.groups()
            if plain:
                for char in plain:
                    self._put(char)
            elif control:
                self._control(control)
            elif command and not private:
                self._command(command, [int(n) for n in numbers.split(";") if n])

    def lines(self) -> list[str]:
        return ["".join(char for char, _ in row).rstrip() for row in self.rows]

    def _put(self, char: str) -> None:
        if self.column >= self.width:
            self._control("\n")
            self.column = 0
        row = self.rows[self.row]
        row += [(" ", None)] * (self.column + 1 - len(row))
        row[self.column] = (char, self.colour)
        self.column += 1

    def _control(self, control: str) -> None:
        if control == "\r":
            self.column = 0
        elif control == "\x08":
            self.column = max(0, self.column - 1)
        else:
            self.row += 1
            if self.row == len(self.rows):
                self.rows.append([])

    def _command(self, command: str, numbers: list[int]) -> None:
        first = numbers[0] if numbers else 0
        if command == "A":
            self.row = max(0, self.row - max(1, first))
        elif command == "K":
            kept = {0: self.rows[self.row][: self.column], 2: []}
            self.rows[self.row] = kept[first]
        elif command == "J" and first == 0:
            self.rows[self.row :] = [self.rows[self.row][: self.column]]
        elif command == "H" and not numbers:
            self.row = self.column = 0
        elif command == "m":
            for number in numbers or [0]:
                self.colour = number if number in PALETTE else None if number in (0, 39) else self.colour
        else:
            raise AssertionError(f"an unexpected command to the terminal: {command} {numbers}")

    def copy(self) -> list[list[Cell]]:
        return [list(row) for row in self.rows]


def film(frames: list[tuple[float, list[list[Cell]]]], columns: int, title: str, pause: float = 3.0) -> str:
    """Frames (each with its time) as one SVG that plays by itself, over and over; the last one stays for a while."""
    rows = max(len(frame) for _, frame in frames)
    total = frames[-1][0] - frames[0][0] + pause
    wide, high = columns * 8.4 + 24, rows * 18 + 50
    starts = [100 * (when - frames[0][0]) / total for when, _ in frames] + [100.0]
    style, groups = [], []
    for number, (_, frame) in enumerate(frames):
        begin, end = starts[number], starts[number + 1]
        shown = f"{begin:.2f}%, {max(begin, end - 0.01):.2f}% {{opacity:1}} {end:.2f}%, 100% {{opacity:0}}"
        before = f"0%, {max(0.0, begin - 0.01):.2f}% {{opacity:0}} " if number else ""
        last = f"{begin:.2f}%, 100% {{opacity:1}}" if number == len(frames) - 1 else shown
        style.append(f"@keyframes f{number} {{{before}{last}}}")
        style.append(f"#f{number} {{animation: f{number} {total:.1f}s infinite step-end}}")
        lines = "".join(f'<text x="12" y="{54 + 18 * y}">{_spans(row)}</text>' for y, row in enumerate(frame))
        groups.append(f'<g id="f{number}">{lines}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high}" width="{wide:.0f}" height="{high}">'
        f"<style>text {{font: 14px ui-monospace, 'DejaVu Sans Mono', monospace; fill: #d8dee9; white-space: pre}}"
        f".t {{font-family: sans-serif; fill: #9aa4b1}} {' '.join(style)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#22272e"/>'
        f'<text class="t" x="{wide / 2:.0f}" y="22" text-anchor="middle">{html.escape(title)}</text>'
        f"{''.join(groups)}</svg>\n"
    )


def _spans(row: list[Cell]) -> str:
    """Neighbours of one colour together."""
    parts: list[str] = []
    at = 0
    while at < len(row):
        end = at
        while end < len(row) and row[end][1] == row[at][1]:
            end += 1
        text = html.escape("".join(char for char, _ in row[at:end]))
        colour = PALETTE.get(row[at][1] or 0)
        parts.append(f'<tspan fill="{colour}">{text}</tspan>' if colour else f"<tspan>{text}</tspan>")
        at = end
    return "".join(parts)
