"""Attack the native entry points, the public functions and the reader of files with atheris (`make fuzz`).

python tools/fuzz.py [-max_total_time=SECONDS] [CORPUS]    options are libFuzzer's; a crash file is replayed
                                                           by giving it in place of the corpus
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

with atheris.instrument_imports(include=["blockscale", "fuzzing"]):
    from fuzzing.attacks import attack_api, attack_core, attack_header

FOLDER = tempfile.TemporaryDirectory()


def attack(data: bytes) -> None:
    """The first byte says what is attacked."""
    what = data[0] % 3 if data else 0
    if what == 0:
        attack_core(data[1:])
    elif what == 1:
        attack_api(data[1:])
    else:
        attack_header(data[1:], Path(FOLDER.name))


if __name__ == "__main__":
    (ROOT / "build").mkdir(exist_ok=True)
    # Attacks are decisions, 400 bytes or so; a find is kept under build/.
    atheris.Setup([*sys.argv, "-max_len=512", f"-artifact_prefix={ROOT}/build/"], attack)
    atheris.Fuzz()
