"""The command line `kinfolk`: parsing and printing only."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinfolk.errors import KinfolkError


def main() -> None:
    """Entry point: one-line errors with exit code 2, and no traceback unless --debug is given."""
    debug = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]
    from kinfolk.cli.commands import app
    from kinfolk.cli.words import error_line, speaks
    from kinfolk.errors import KinfolkError

    try:
        try:
            app()
        except (OSError, MemoryError, RuntimeError) as error:
            told = _for_people(error)
            if told is None:
                raise
            raise told from error
    except KinfolkError as error:
        if debug:
            raise
        if speaks() or (os.environ["RANK"], error.field) == ("1", "rank 0"):  # who else could say it?
            print(f"error: {error_line(error)}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:
        if debug:
            raise
        first = (str(error).splitlines() or [""])[0]
        print(
            f"error: {type(error).__name__}: {first} (this is a fault of kinfolk or of your code; "
            "add --debug for the traceback)",
            file=sys.stderr,
        )
        sys.exit(1)


def _for_people(error: Exception) -> KinfolkError | None:
    """An error that the machine sets and the user can mend, in their words; None for any other."""
    from kinfolk.errors import KinfolkError, ran_out_of_memory

    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return KinfolkError("path", error.filename, "no file can have so long a name; give another")
    if ran_out_of_memory(error):
        first = (str(error).splitlines() or [type(error).__name__])[0][:120]
        remedy = "give more of it, or less work at once: engine.chunk, engine.processes, local.batch"
        return KinfolkError("memory", None, f"ran out ({first}); {remedy}")
    return None
