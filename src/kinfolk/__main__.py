"""The command line as `kinfolk` and `python -m kinfolk` start it: the tool's commands and those of papers."""

from kinfolk.cli import main as start


def main() -> None:
    """Entry point of `kinfolk`."""
    import kinfolk.papers.commands  # noqa: F401  (adds its commands)

    start()


if __name__ == "__main__":
    main()
