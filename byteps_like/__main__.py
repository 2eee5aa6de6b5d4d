"""`python -m byteps_like` is `byteps-like`."""

from byteps_like.cli.main import main

if __name__ == "__main__":
    main()
