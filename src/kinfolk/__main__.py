"""`python -m kinfolk`: the command line, as torchrun wants to start it."""

from kinfolk.cli import main

if __name__ == "__main__":
    main()
