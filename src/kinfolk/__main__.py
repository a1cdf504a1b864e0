"""The command line as `kinfolk` and `python -m kinfolk` start it: the tool's commands and those of papers."""

import sys

from kinfolk.cli import main as start


def main() -> None:
    """Entry point of `kinfolk`."""
    import kinfolk.papers.commands  # noqa: F401  (adds its commands)

    start()


if __name__ == "__main__":
    # As the command `kinfolk`: no file of the working directory, which may be a stranger's, is imported.
    if not sys.flags.safe_path:
        sys.path.pop(0)
    main()
