"""The commands on files of models: quantize, compare, inspect."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from blockscale.cli_output import (
    as_json,
    bytes_text,
    one_line,
    print_json,
    print_recipes,
    print_table,
    printable,
    progress,
    shape_text,
)

FORMS = ("custom", "portable", "native")
RUNTIMES = ("onnx", "onnxruntime")
COMPATIBLE = ("quark",)

_SHAPE = re.compile(r"(?P<name>.+)=(?P<sizes>\d+(,\d+)*)?")
_RANDOM = re.compile(r"random:(?P<batches>\d+)")

_shapes = click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=SIZES",
    help="Sizes of an input for random data, as x=1,3,224,224; may be repeated.",
)  # fmt: skip
_libraries = click.option(
    "--library", "libraries", multiple=True, type=click.Path(exists=True, dir_okay=False),
    help="Of custom operators that onnxruntime needs to run the given model; may be repeated.",
)  # fmt: skip


def _list_recipes(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        print_recipes(False)
        context.exit()


# ------------------------------------------------------------------------------------------ quantize


@click.command(
    epilog="""\b
    Examples:
      blockscale quantize model.onnx -r mxfp4 -o model.mxfp4.onnx
      blockscale quantize model.onnx -r mxint8-all -o out.onnx --form portable
      blockscale quantize model.onnx -r int4-g128-float -o out.onnx --form native --runtime onnxruntime
      blockscale quantize model.onnx -r int8 -o out.onnx --calibration samples/ --method percentile
      blockscale quantize model.onnx -r mine.yaml -o out.onnx --calibration random:8 --shape x=1,3,224,224
      blockscale quantize from_quark.onnx -o out.onnx --form portable
    """
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-r",
    "--recipe",
    help="A preset's name (see --list), or a .yaml file. Without one the quantizes that MODEL has are taken.",
)
@click.option("-o", "--output", "out", required=True, type=click.Path(path_type=Path), help="File to write.")
@click.option(
    "--form",
    type=click.Choice(FORMS),
    help="Of ONNX files: our operators (custom, the default), standard ones (portable), or ONNX types (native).",
)
@click.option(
    "--runtime",
    type=click.Choice(RUNTIMES),
    help="Of --form native: all of ONNX's types (onnx, the default), or those that onnxruntime has.",
)
@click.option(
    "--compat", type=click.Choice(COMPATIBLE), help="Place quantizes as that project does, and name them so."
)
@click.option(
    "--prepare",
    metavar="STEPS",
    help="Before the recipe: auto (the default), none, or opset,shapes,batch_norm,…",
)
@click.option(
    "--calibration",
    metavar="DATA",
    help="Inputs for static scales: a folder of .npy or .npz files, or random:N for N batches.",
)
@click.option(
    "--method",
    help="How static scales are found: minmax, mse, entropy, percentile,percentile=99.9, …",
)
@_shapes
@_libraries
@click.option("--force", is_flag=True, help="Write over MODEL itself.")
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_recipes,
    help="Show the names of recipes, and exit.",
)
@as_json
def quantize(
    model: Path, recipe: str | None, out: Path, form: str | None, runtime: str | None, compat: str | None,
    prepare: str | None, calibration: str | None, method: str | None, shapes: tuple[str, ...],
    libraries: tuple[str, ...], force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Quantize MODEL, an .onnx or .pt2 file, as a recipe says, or as it is marked already.

    The file that is written appears whole or not at all; one that was there is replaced.
    """
    _check_files(model, out, force)
    onnx_only = {
        "--form": form, "--runtime": runtime, "--compat": compat, "--prepare": prepare, "--library": libraries,
    }  # fmt: skip
    for option, given in onnx_only.items():
        if given and model.suffix != ".onnx":
            raise click.UsageError(one_line(f"{option} is for .onnx files, {model.name} is none"))
    arguments = {
        "compat": compat, "prepare": None if prepare is None else _prepare(prepare),
        "libraries": libraries or None, "method": None if method is None else _method(method),
        "calibration": None if calibration is None else _data(calibration, shapes, "--calibration"),
    }  # fmt: skip
    if calibration is None and shapes:
        raise click.UsageError("--shape is for random data: add --calibration random:N")
    if runtime is not None and form != "native":
        raise click.UsageError("--runtime chooses types of the native form: add --form native")
    import blockscale as bs

    started = time.perf_counter()
    if calibration is None:  # which has a bar of its own
        progress(0.1, f"quantizing {printable(model.name)}")
    made = bs.quantize_model(model, recipe, **_said(arguments))
    progress(0.9, f"writing {printable(out.name)}")
    made.save(out, **_said({"form": form, "runtime": runtime}))
    progress(1)
    seconds = time.perf_counter() - started
    size = _on_disk(out, made.report.bytes_after)
    if as_json:
        facts = {"file": str(out), "file_bytes": size, "form": form, "seconds": seconds}
        return print_json({**facts, **made.report.to_dict()})
    from blockscale.report import quantized

    print_table([], quantized.rows(made.report), left=(0, 1))
    click.echo(f"{printable(str(out))}: {bytes_text(size)}, written after {seconds:.1f} s")
    click.echo(quantized.next_steps(printable(str(model)), printable(str(out)), form, runtime))
    return None


def _said(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments that the user gave; the others keep the defaults of the functions."""
    return {name: value for name, value in given.items() if value is not None}


def _check_files(model: Path, out: Path, force: bool) -> None:
    """What can be known before the work starts."""
    if not model.is_file():
        raise click.ClickException(one_line(f"{model}: there is no such file"))
    if out.suffix != model.suffix:
        raise click.UsageError(
            one_line(f"-o {out}: {model.name} becomes another {model.suffix or 'such'} file")
        )
    if not out.absolute().parent.is_dir():
        raise click.ClickException(one_line(f"{out}: there is no folder {out.parent}"))
    if out.is_dir():
        raise click.ClickException(one_line(f"{out}: it is a folder"))
    if out.exists() and os.path.samefile(model, out) and not force:
        raise click.UsageError(one_line(f"-o {out} is MODEL itself: --force writes over it"))


def _on_disk(path: Path, weights: int) -> int:
    """With the file that `save` puts beside it for weights that do not fit into one."""
    size = path.stat().st_size
    beside = [path.with_name(f"{path.name}{end}") for end in (".data", ".2.data")] if size < weights else []
    return size + sum(one.stat().st_size for one in beside if one.is_file())


def _prepare(text: str) -> str | list[str]:
    return text if text in ("auto", "none") else text.split(",")


def _method(text: str) -> Any:
    """`name` or `name,option=number,…`."""
    name, *options = text.split(",")
    found: dict[str, float] = {}
    for option in options:
        key, sign, value = option.partition("=")
        try:
            found[key] = int(value) if value.isdigit() else float(value)
        except ValueError:
            sign = ""
        if not sign:
            raise click.BadParameter(f"{printable(option)!r} is no option=number", param_hint="--method")
    return (name, found) if found else name


def _data(text: str, shapes: Sequence[str], option: str) -> Any:
    """A folder, or `random:N`."""
    from blockscale.runtime.calibration_data import random

    sizes: dict[str, tuple[int, ...]] = {}
    for shape in shapes:
        match = _SHAPE.fullmatch(shape)
        if match is None:
            raise click.BadParameter(f"{printable(shape)!r} is not like x=1,3,224,224", param_hint="--shape")
        sizes[match["name"]] = tuple(map(int, match["sizes"].split(","))) if match["sizes"] else ()
    match = _RANDOM.fullmatch(text)
    if match is not None:
        return random(int(match["batches"]), shapes=sizes)
    if sizes:
        raise click.UsageError(f"--shape is for random data: {option} random:N")
    if not Path(text).is_dir():
        raise click.ClickException(
            one_line(f"{option} {text}: there is no such folder; random:N draws N batches")
        )
    return Path(text)


# ------------------------------------------------------------------------------------------ compare


@click.command(
    epilog="""\b
    Examples:
      blockscale compare model.onnx model.mxfp4.onnx --data samples/
      blockscale compare model.onnx out.onnx --data random:4 --shape x=1,3,224,224 --worst 20
      blockscale compare model.onnx out.onnx --data samples/ --fail-under 30
    """
)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--data", required=True, metavar="DATA", help="A folder of .npy or .npz files, or random:N for N batches."
)
@_shapes
@click.option(
    "--worst", type=click.IntRange(1), metavar="N", help="Show only the N worst tensors, and outputs."
)
@click.option("--fail-under", type=float, metavar="DB", help="Exit code 1 if an output's SQNR is below.")
@as_json
def compare(
    a: Path, b: Path, data: str, shapes: tuple[str, ...], worst: int | None, fail_under: float | None,
    as_json: bool,
) -> None:  # fmt: skip
    """How far model B is from model A, tensor by tensor, worst first.

    Both are .onnx or both .pt2. SQNR is 10 log10(Σ a² / Σ (a - b)²), in dB; inf where all is equal.
    """
    for path in (a, b):
        if not path.is_file():
            raise click.ClickException(one_line(f"{path}: there is no such file"))
    given = _data(data, shapes, "--data")
    import blockscale as bs
    from blockscale.report.comparison import Comparison

    found = bs.compare(a, b, given)
    rows = (
        found.rows
        if worst is None
        else tuple(r for i, r in enumerate(found.rows) if i < worst or r.is_output)
    )
    if as_json:
        click.echo(Comparison(rows, found.batches).to_json())
    else:
        print_table(
            ["tensor", "", "SQNR dB", "cosine", "max error", "of peak"],
            [[row.tensor, "output" if row.is_output else "", f"{row.sqnr:.2f}", f"{row.cosine:.6f}",
              f"{row.max_error:.3g}", f"{row.peak:.3g}"] for row in rows],
            left=(0, 1),
        )  # fmt: skip
        more = f", {len(rows)} of them shown" if len(rows) < len(found.rows) else ""
        click.echo(f"{len(found.rows)} tensors that both have{more}, batches: {found.batches}")
    if fail_under is not None:
        _check_outputs(found.outputs, fail_under)


def _check_outputs(outputs: Sequence[Any], least: float) -> None:
    if not outputs:
        raise click.ClickException("--fail-under: the models have no output in common")
    low = [row for row in outputs if not row.sqnr >= least]
    if low:
        told = ", ".join(f"{row.tensor} has {row.sqnr:.2f} dB" for row in low)
        raise click.ClickException(one_line(f"{told}: below {least:g}"))


# ------------------------------------------------------------------------------------------ inspect


@click.command(
    epilog="""\b
    Examples:
      blockscale inspect model.safetensors
      blockscale inspect model.mxfp4.onnx
      blockscale inspect model.onnx --json
    """
)
@click.argument("file", type=click.Path(path_type=Path))
@as_json
def inspect(file: Path, as_json: bool) -> None:
    """Quantized tensors of an .onnx or .safetensors FILE; of .onnx also where it runs.

    Weights are not read, and nothing in the file is trusted.
    """
    if file.suffix.lower() == ".onnx":
        return _inspect_onnx(file, as_json)
    return _inspect_safetensors(file, as_json)


def _inspect_onnx(file: Path, as_json: bool) -> None:
    from blockscale.report import onnx_file

    found = onnx_file.facts(file)
    if as_json:
        return print_json(found.to_dict())
    if found.tensors:
        print_table(onnx_file.HEAD, [_onnx_row(one) for one in found.tensors], left=(0, 1, 2, 3, 4, 8))
    print_table([], onnx_file.summary(found, bytes_text), left=(0, 1))
    return None


def _onnx_row(one: Any) -> list[str]:
    weight = one.stored_bytes is not None
    return [
        one.name, ", ".join(one.readers) or "–", one.role, one.layout,
        "?" if one.shape is None else shape_text(one.shape),
        bytes_text(one.stored_bytes) if weight else "–",
        bytes_text(one.float_bytes) if weight and one.float_bytes is not None else "–",
        f"{one.ratio:.3f}" if one.ratio is not None else "–",
        ", ".join(one.forms),
    ]  # fmt: skip


def _inspect_safetensors(file: Path, as_json: bool) -> None:
    from blockscale.report.checkpoint import recognized
    from blockscale.report.safetensors import read_header

    entries, metadata = read_header(file)
    weights = recognized(entries)
    total = sum(one.nbytes for one in entries)
    if as_json:
        return print_json({
            "file": str(file), "metadata": metadata, "bytes": total,
            "tensors": [{"name": one.name, "dtype": one.dtype, "shape": one.shape, "bytes": one.nbytes}
                        for one in entries],
            "block_scaled": [{"name": one.name, "format": one.format, "written_by": one.written_by,
                              "shape": one.shape, "block": one.block, "bytes": one.nbytes,
                              "bits_per_weight": one.bits_per_weight, "tensors": one.tensors}
                             for one in weights],
        })  # fmt: skip
    rows = [[one.name, one.dtype, shape_text(one.shape), bytes_text(one.nbytes)] for one in entries]
    print_table(["tensor", "dtype", "shape", "size"], rows, left=(0, 1, 2))
    if weights:
        print_table(
            ["block-scaled weight", "format", "as written by", "shape", "bits a weight"],
            [[one.name, one.format, one.written_by, shape_text(one.shape), f"{one.bits_per_weight:.3f}"]
             for one in weights],
            left=(0, 1, 2, 3),
        )  # fmt: skip
    scaled = sum(one.nbytes for one in weights)
    click.echo(
        f"{len(entries)} tensors, {bytes_text(total)}; {len(weights)} block-scaled weights, {bytes_text(scaled)}"
    )
    return None


COMMANDS = (quantize, compare, inspect)
