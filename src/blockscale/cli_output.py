"""How commands print: tables for people, JSON for machines, and nothing in names that a terminal obeys."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

as_json = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")


def print_json(value: Any) -> None:
    click.echo(json_text(value))


def json_text(value: Any) -> str:
    return json.dumps(_plain(value), indent=1, allow_nan=False)


def _plain(value: Any) -> Any:
    """JSON has no Inf and NaN: null stands for them."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def _console() -> Console:
    """As wide as a terminal; where there is none, as wide as needed."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 240)


def print_table(head: list[str], rows: list[list[str]], left: Any) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD if head else None, show_header=bool(head), pad_edge=False)
    console = _console()
    for index in range(len(rows[0]) if rows else len(head)):
        side = "left" if index in left else "right"
        table.add_column(head[index] if head else "", justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    with console.capture() as capture:
        console.print(table, highlight=False)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    click.echo("\n" + "\n".join(line for line in lines if line) + "\n")


def printable(text: str) -> str:
    """Names in files may hold control codes of terminals."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    return printable("; ".join(line.strip() for line in text.splitlines() if line.strip()))


def progress(done: float, text: str = "") -> None:
    """A bar on one line that is written over, gone at the end; nothing where nobody looks."""
    if sys.stderr.isatty():
        bar = "█" * round(24 * done) + "░" * round(24 * (1 - done))
        sys.stderr.write("\r\x1b[K" + (f"{bar} {text}" if done < 1 else ""))
        sys.stderr.flush()


def print_recipes(as_json: bool) -> None:
    """Names of recipes: what `presets --recipes` and `quantize --list` show."""
    from blockscale.recipe_presets import names, preset_rules

    if as_json:
        return print_json([{"recipe": name, "rules": list(map(str, preset_rules(name)))} for name in names()])
    print_table([], _columns(names(), 4), left=range(4))
    click.echo(
        "X quantizes weights and inputs of linear operators; X-Y weights to X and inputs to Y; X-float weights alone;\n"
        "with -all every activation. X and Y: every name of `blockscale presets`. Rules of your own: a .yaml file."
    )
    return None


def _columns(names: Sequence[str], count: int) -> list[list[str]]:
    """Read downwards."""
    height = -(-len(names) // count)
    return [[*names[i::height], *[""] * (count - len(names[i::height]))] for i in range(height)]


def shape_text(shape: Sequence[int | str | None]) -> str:
    return " × ".join("?" if n is None else str(n) for n in shape) if shape else "scalar"


def bytes_text(count: int | None) -> str:
    if count is None:
        return "unknown"
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
