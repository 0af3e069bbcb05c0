"""`python -m actorlm`: the command line, for launchers that start modules."""

from actorlm.cli import main

if __name__ == "__main__":
    main(prog_name="actorlm")
