"""`python -m penstock`: the command line."""

from penstock.cli import main

if __name__ == "__main__":
    main()
