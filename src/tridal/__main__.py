"""The command `python -m tridal`, which is the command `tridal`."""

from tridal.cli import main

if __name__ == "__main__":
    main()
