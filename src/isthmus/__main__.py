"""Run the command line with `python -m isthmus`."""

from isthmus.cli.main import main

if __name__ == "__main__":
    main()
