"""`python -m headgate` is the same command as `headgate`."""

from headgate.cli import main

if __name__ == "__main__":
    main()
