"""The `blockscale` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blockscale import __version__
from blockscale.errors import BlockscaleError

if TYPE_CHECKING:
    from rich.console import Console

as_json = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")


class _Group(click.Group):
    """What goes wrong is one line and exit code 1; a traceback only with --debug."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (BlockscaleError, OSError) as error:
            # click ends quietly where a pipe was closed
            if isinstance(error, BrokenPipeError) or ctx.params.get("debug"):
                raise
            text = str(error) if isinstance(error, BlockscaleError) else f"{type(error).__name__}: {error}"
            raise click.ClickException(_printable(text)) from None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="blockscale")
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
def main(debug: bool) -> None:
    """Block-scaled numbers: MX, NVFP4 and affine formats."""


@main.command()
@as_json
@click.option("--all", "every", is_flag=True, help="A row for every integer.")
def formats(as_json: bool, every: bool) -> None:
    """The number formats."""
    from blockscale.numerics.formats import ELEMENTS, FORMATS, SCALES
    from blockscale.report import tables

    if not as_json:
        return _print_table(tables.FORMAT_HEAD, tables.format_rows(every), left=(0, 1, 3, 7, 8))
    return _print_json([
        {"name": one.name, "kind": one.kind, "bits": one.bits, "exponent_bits": one.exponent_bits,
         "mantissa_bits": one.mantissa_bits, "bias": one.bias, "max": one.max, "smallest": one.smallest,
         "specials": one.specials, "signed": one.signed, "ml_dtype": one.ml_dtype,
         "element": one.name in ELEMENTS, "scale": one.name in SCALES, "doc": one.doc}
        for one in FORMATS.values()
    ])  # fmt: skip


@main.command()
@as_json
def presets(as_json: bool) -> None:
    """The named schemes, and how to name others."""
    from dataclasses import asdict

    from blockscale.numerics.scheme import PRESETS, scheme_named
    from blockscale.report import tables

    if as_json:
        return _print_json([{"preset": name, **asdict(scheme_named(name))} for name in PRESETS])
    _print_table(tables.PRESET_HEAD, tables.preset_rows(), left=range(7))
    click.echo(
        "Others are named by rule: any bfpN (10 to 24) takes -g<size> or nothing (blocks of 8);\n"
        "any intN or uintN (2 to 16 bits), fp8, fp6 or fp4 element takes\n"
        "-channel, -token, -g<size> or nothing (one scale for all); settings follow after commas:\n"
        "    int6-g64    mxfp4,rule=rceil    int4-g128,scale=bf16,dialect=torchao"
    )
    return None


@main.command()
@as_json
def doctor(as_json: bool) -> None:
    """What this installation has, and what it lacks."""
    from blockscale.report.doctor import facts, install_hint

    found = facts()
    if as_json:
        _print_json(found)
    else:
        system, core = found["system"], found["core"]
        rows = [["blockscale", found["blockscale"]], ["python", found["python"]]]
        rows += [
            [name, version or f"not installed: {install_hint(name)}"]
            for name, version in found["packages"].items()
        ]
        rows += [
            ["instruction set", f"{core.get('instruction_set')} (of {', '.join(core.get('available', []))})"],
            ["BLOCKSCALE_ISA", core["BLOCKSCALE_ISA"] or "not set: the best one is taken"],
            ["BLOCKSCALE_NUM_THREADS", core["BLOCKSCALE_NUM_THREADS"] or "not set: one thread a processor"],
            ["threads, own pool", str(core.get("pool_threads"))],
            ["threads, OpenMP", str(core.get("openmp_threads") or "none loaded; torch brings one")],
            ["processors", f"{system['cpus_of_process']} of {system['cpus']}"],
            ["memory", _bytes(system["memory_bytes"])],
            ["caches", ", ".join(f"{k} {_bytes(v)}" for k, v in system["cache_bytes"].items()) or "unknown"],
            ["system", f"{system['os']} ({system['machine']})"],
        ]
        _print_table([], rows, left=(0, 1))
        for problem in found["problems"]:
            click.echo(f"problem: {problem}", err=True)
    if found["problems"]:
        sys.exit(1)


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@as_json
def inspect(file: Path, as_json: bool) -> None:
    """Tensors and block-scaled weights of a safetensors FILE.

    Only the header is read, and nothing in it is trusted.
    """
    from blockscale.report.checkpoint import recognized
    from blockscale.report.safetensors import read_header

    entries, metadata = read_header(file)
    weights = recognized(entries)
    total = sum(one.nbytes for one in entries)
    if as_json:
        return _print_json({
            "file": str(file), "metadata": metadata, "bytes": total,
            "tensors": [{"name": one.name, "dtype": one.dtype, "shape": one.shape, "bytes": one.nbytes}
                        for one in entries],
            "block_scaled": [{"name": one.name, "format": one.format, "written_by": one.written_by,
                              "shape": one.shape, "block": one.block, "bytes": one.nbytes,
                              "bits_per_weight": one.bits_per_weight, "tensors": one.tensors}
                             for one in weights],
        })  # fmt: skip
    rows = [[one.name, one.dtype, _shape(one.shape), _bytes(one.nbytes)] for one in entries]
    _print_table(["tensor", "dtype", "shape", "size"], rows, left=(0, 1, 2))
    if weights:
        _print_table(
            ["block-scaled weight", "format", "as written by", "shape", "bits a weight"],
            [[one.name, one.format, one.written_by, _shape(one.shape), f"{one.bits_per_weight:.3f}"]
             for one in weights],
            left=(0, 1, 2, 3),
        )  # fmt: skip
    scaled = sum(one.nbytes for one in weights)
    click.echo(
        f"{len(entries)} tensors, {_bytes(total)}; {len(weights)} block-scaled weights, {_bytes(scaled)}"
    )
    return None


@main.group()
def bench() -> None:
    """Quick measurements; `make bench` has the thorough ones."""


@bench.command()
@click.option("--format", "names", multiple=True, help="Preset to measure; may be repeated.")
@click.option(
    "--threads",
    multiple=True,
    type=click.IntRange(1, 256),
    default=(1, 2),
    show_default=True,
    help="Number of threads; may be repeated.",
)
@click.option(
    "--seconds", type=click.FloatRange(0, 10), default=0.03, show_default=True, help="For each measurement."
)
@as_json
def codec(names: tuple[str, ...], threads: tuple[int, ...], seconds: float, as_json: bool) -> None:
    """Speed of quantize, dequantize and both.

    In elements a second, and as time beside a plain copy of the same memory.
    """
    from blockscale.report import bench

    rows = []
    names = names or bench.FORMATS
    total = len(names) * len(threads) * len(bench.PLACES)
    for row in bench.codec(names, threads, seconds):
        rows.append(row)
        _progress(len(rows) / (total + 1), f"{row['format']}, {row['place']}")
    _progress(1)
    if as_json:
        return _print_json(rows)
    operations = ("fake_quantize", "quantize", "dequantize")
    _print_table(
        ["format", "in", "threads", *(f"{what}, G/s (× copy)" for what in operations)],
        [
            [row["format"], row["place"], str(row["threads"]),
             *(f"{row[what]['elements_per_second'] / 1e9:.2f} ({row[what]['copy_ratio']:.2f})"
               for what in operations)]
            for row in rows
        ],
        left=(0, 1),
    )  # fmt: skip
    click.echo(
        "float32, blocks along the last axis; × copy: time / that of numpy copying the input, one thread"
    )
    return None


@main.command()
@as_json
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Also write the JSON here.")
def demo(as_json: bool, report: Path | None) -> None:
    """Quantize every weight of a real model to every preset that can be stored."""
    from blockscale.numerics.scheme import PRESETS, scheme_named
    from blockscale.report import demo, demo_text

    model = demo.load_model(demo.find_model())
    if not as_json:
        click.echo(demo_text.opening(model))
    results: list[demo.PresetResult] = []
    stored = [name for name in PRESETS if not scheme_named(name).why_no_codes]
    for preset in stored:
        _progress(len(results) / len(stored), preset)
        results.append(demo.run_preset(preset, model.weights))
    _progress(1)
    if report is not None:
        report.write_text(_json(demo.as_json(model, results)) + "\n", encoding="utf-8")
    if as_json:
        return _print_json(demo.as_json(model, results))
    _print_table(*demo_text.presets(model, results), left=(0, 1, 6))
    _print_table(*demo_text.worst(results), left=(0, 1, 2))
    click.echo(demo_text.closing(results))
    return None


# ------------------------------------------------------------------------------------------ output


def _print_json(value: Any) -> None:
    click.echo(_json(value))


def _json(value: Any) -> str:
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


def _print_table(head: list[str], rows: list[list[str]], left: Any) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD if head else None, show_header=bool(head), pad_edge=False)
    console = _console()
    for index in range(len(rows[0]) if rows else len(head)):
        side = "left" if index in left else "right"
        table.add_column(head[index] if head else "", justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(_printable(cell)) for cell in row))
    with console.capture() as capture:
        console.print(table, highlight=False)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    click.echo("\n" + "\n".join(line for line in lines if line) + "\n")


def _printable(text: str) -> str:
    """Names in files may hold control codes of terminals."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def _progress(done: float, text: str = "") -> None:
    """A bar on one line that is written over, gone at the end; nothing where nobody looks."""
    if sys.stderr.isatty():
        bar = "█" * round(24 * done) + "░" * round(24 * (1 - done))
        sys.stderr.write("\r\x1b[K" + (f"{bar} {text}" if done < 1 else ""))
        sys.stderr.flush()


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) if shape else "scalar"


def _bytes(count: int | None) -> str:
    if count is None:
        return "unknown"
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
