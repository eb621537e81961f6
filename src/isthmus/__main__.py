"""Run the command line, as `isthmus` or with `python -m isthmus`."""

from isthmus.cli.interrupts import on_interrupt


def main() -> None:
    """Run the command line; an interrupt while it is imported is one line, too."""
    on_interrupt()
    from isthmus.cli.main import main

    main()


if __name__ == "__main__":
    main()
