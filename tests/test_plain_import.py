"""What a plain ``import krishiv_py`` is enough for."""

import subprocess
import sys


def test_windows_are_found_behind_a_plain_import() -> None:
    """Error texts say ``krishiv_py.windows.tumbling("1 min")``."""
    code = "import krishiv_py; print(krishiv_py.windows.tumbling('1 min').size_us)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "60000000", done.stderr
