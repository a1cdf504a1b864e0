"""The command line `kinfolk`: parsing and printing only."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point: one-line errors with exit code 2, and no traceback unless --debug is given."""
    debug = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]
    from kinfolk.cli.commands import app
    from kinfolk.cli.words import error_line, speaks
    from kinfolk.errors import KinfolkError, ran_out_of_memory

    try:
        app()
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
        if ran_out_of_memory(error):
            remedy = "give more of it, or less work at once: engine.chunk, engine.processes, local.batch"
            print(f"error: memory: ran out ({first or type(error).__name__}); {remedy}", file=sys.stderr)
            sys.exit(2)
        print(
            f"error: {type(error).__name__}: {first} (this is a fault of kinfolk or of your code; "
            "add --debug for the traceback)",
            file=sys.stderr,
        )
        sys.exit(1)
