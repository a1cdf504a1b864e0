"""The command line `kinfolk`: parsing and printing only."""

from __future__ import annotations

import errno
import os
import sys


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
            raise _for_people(error) from error.__cause__
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


def _for_people(error: Exception) -> Exception:
    """An error that the machine sets and the user can mend, in their words; any other as it is."""
    from kinfolk.errors import KinfolkError

    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return KinfolkError("path", error.filename, "no file can have so long a name; give another")
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        first = (str(error).splitlines() or ["no reason given"])[0][:120]
        return KinfolkError(
            "memory", None, f"there is too little ({first}); make rows, model or batches smaller"
        )
    return error
