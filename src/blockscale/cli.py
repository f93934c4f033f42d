"""The `blockscale` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import click

from blockscale import __version__, cli_models
from blockscale.cli_output import (
    as_json,
    bytes_text,
    json_text,
    one_line,
    print_json,
    print_recipes,
    print_table,
    progress,
)
from blockscale.errors import BlockscaleError

_INTERRUPTED = 130  # as shells say it: 128 and the number of SIGINT
_LONGEST = 300  # characters of an error that nobody foresaw


class _Group(click.Group):
    """What goes wrong is one line and exit code 1; a traceback only with --debug. Ctrl-C is one line and 130."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            progress(1)
            click.echo("Interrupted", err=True)
            sys.exit(_INTERRUPTED)
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise  # click's own; and it ends quietly where a pipe was closed
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            progress(1)
            raise click.ClickException(one_line(_text(error))) from None


def _text(error: BaseException) -> str:
    if isinstance(error, BlockscaleError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        from blockscale.report.doctor import PACKAGES, install_hint

        package = (error.name or "").partition(".")[0]
        return f"{package} is not installed: {install_hint(package)}" if package in PACKAGES else str(error)
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"
    while error.__cause__ is not None:  # others say what they were doing, and the whole graph with it
        error = error.__cause__
    return f"{type(error).__name__}: {str(error)[:_LONGEST]} (blockscale --debug … shows where)"


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="blockscale")
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
def main(debug: bool) -> None:
    """Block-scaled numbers: MX, NVFP4 and affine formats."""
    if not debug:  # what it warns of in a broken file becomes an error of one line
        logging.getLogger("onnx_ir").setLevel(logging.ERROR)


@main.command()
@as_json
@click.option("--all", "every", is_flag=True, help="A row for every integer.")
def formats(as_json: bool, every: bool) -> None:
    """The number formats."""
    from blockscale.numerics.formats import ELEMENTS, FORMATS, SCALES
    from blockscale.report import tables

    if not as_json:
        return print_table(tables.FORMAT_HEAD, tables.format_rows(every), left=(0, 1, 3, 7, 8))
    return print_json([
        {"name": one.name, "kind": one.kind, "bits": one.bits, "exponent_bits": one.exponent_bits,
         "mantissa_bits": one.mantissa_bits, "bias": one.bias, "max": one.max, "smallest": one.smallest,
         "specials": one.specials, "signed": one.signed, "ml_dtype": one.ml_dtype,
         "element": one.name in ELEMENTS, "scale": one.name in SCALES, "doc": one.doc}
        for one in FORMATS.values()
    ])  # fmt: skip


@main.command()
@as_json
@click.option(
    "--recipes", is_flag=True, help="The recipes for whole models, as `blockscale quantize` takes them."
)
def presets(as_json: bool, recipes: bool) -> None:
    """The named schemes, and how to name others."""
    from dataclasses import asdict

    from blockscale.numerics.scheme import PRESETS, scheme_named
    from blockscale.report import tables

    if recipes:
        return print_recipes(as_json)
    if as_json:
        return print_json([{"preset": name, **asdict(scheme_named(name))} for name in PRESETS])
    print_table(tables.PRESET_HEAD, tables.preset_rows(), left=range(7))
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
        print_json(found)
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
            ["operators for ONNX Runtime", found["onnxruntime_library"] or "missing"],
            ["processors", f"{system['cpus_of_process']} of {system['cpus']}"],
            ["memory", bytes_text(system["memory_bytes"])],
            [
                "caches",
                ", ".join(f"{k} {bytes_text(v)}" for k, v in system["cache_bytes"].items()) or "unknown",
            ],
            ["system", f"{system['os']} ({system['machine']})"],
        ]
        print_table([], rows, left=(0, 1))
        for problem in found["problems"]:
            click.echo(f"problem: {problem}", err=True)
    if found["problems"]:
        sys.exit(1)


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
        progress(len(rows) / (total + 1), f"{row['format']}, {row['place']}")
    progress(1)
    if as_json:
        return print_json(rows)
    operations = ("fake_quantize", "quantize", "dequantize")
    print_table(
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
        progress(len(results) / len(stored), preset)
        results.append(demo.run_preset(preset, model.weights))
    progress(1)
    if report is not None:
        report.write_text(json_text(demo.as_json(model, results)) + "\n", encoding="utf-8")
    if as_json:
        return print_json(demo.as_json(model, results))
    print_table(*demo_text.presets(model, results), left=(0, 1, 6))
    print_table(*demo_text.worst(results), left=(0, 1, 2))
    click.echo(demo_text.closing(results))
    return None


for command in cli_models.COMMANDS:
    main.add_command(command)
