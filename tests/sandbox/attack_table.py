"""Run the attacks and write their table: `python -m tests.sandbox.attack_table` (docs/reference/sandbox-attacks.md)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.sandbox.attacks import ATTACKS, LIMITS, Target

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sandbox-attacks.md"
BEGIN, END = "<!-- attacks: python -m tests.sandbox.attack_table -->", "<!-- end of attacks -->"
COLUMNS = {"root": "full, root", "user": "full, user", "floor": "floor, user", "root at the floor": "floor, root"}
COLUMNS.update({"gvisor": "gvisor, root", "gvisor as user": "gvisor, user"})
COLUMNS["process"] = "process, user"  # the control: an attack that it stops may not be one


def documented() -> dict[str, dict[str, str]]:
    """Return the results of the page by attack and level."""
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if "|" in line]
    levels = {title: level for level, title in COLUMNS.items()}
    names = [levels[title] for title in rows[0][1:]]
    return {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows[2:]}


def render(results: dict[str, dict[str, str]]) -> str:
    lines = [f"| attack | {' | '.join(COLUMNS.values())} |", "|---" * (1 + len(COLUMNS)) + "|"]
    for attack in ATTACKS:
        lines.append(f"| {attack.text} | {' | '.join(results[attack.text][level] for level in COLUMNS)} |")
    return "\n".join(lines)


def main() -> None:
    """Run every attack at every level and write the table."""
    from tests.sandbox.conftest import EVERY_LEVEL, GVISOR_LEVELS, RUNSC, serve_at

    if {*EVERY_LEVEL, *GVISOR_LEVELS} != set(COLUMNS) or RUNSC is None:
        sys.exit("the table needs every level: run this as root, with gVisor from `make test-gvisor`")
    results: dict[str, dict[str, str]] = {attack.text: {} for attack in ATTACKS}
    for level in COLUMNS:
        target = Target(lambda shown, level=level: serve_at(level, read_only=[shown], **LIMITS))
        try:
            for attack in ATTACKS:
                results[attack.text][level] = target.attack(attack)
                print(f"{level}: {attack.text}: {results[attack.text][level]}", flush=True)
        finally:
            target.close()
    page = PAGE.read_text()
    table = f"{BEGIN}\n\n{render(results)}\n\n{END}"
    PAGE.write_text(re.sub(re.escape(BEGIN) + ".*" + re.escape(END), lambda _: table, page, flags=re.DOTALL))


if __name__ == "__main__":
    main()
