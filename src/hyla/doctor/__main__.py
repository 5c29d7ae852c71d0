"""`python -m hyla.doctor`: the same as `hyla doctor`, on machines without cyclopts."""

import argparse
import sys

from hyla.doctor import diagnose

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m hyla.doctor", description=diagnose.__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    sys.exit(diagnose(as_json=parser.parse_args().json))
