"""``python -m krishiv_py`` is the command ``krishiv``."""

import sys

from krishiv_py.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
