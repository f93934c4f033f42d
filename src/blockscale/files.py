"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blockscale.errors import FileError


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside `path` to write to; it becomes `path` when the block ends, and is gone if it raises.

    Whoever reads `path` meets the old file or the new one. FileError: it cannot be written.
    """
    target = Path(path)
    temporary = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
    except BaseException as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) or temporary is None:
            raise FileError(
                f"{target}: cannot be written: {getattr(error, 'strerror', '') or error}"
            ) from error
        raise


def _mode(target: Path) -> int:
    """Permissions as `open` would leave them."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
