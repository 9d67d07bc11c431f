"""`python -m meridian_dataplane.openapi`: prints the public API's OpenAPI document. Needs no environment and no network."""

from __future__ import annotations

import json
import sys

from meridian_dataplane.described import schema


def main() -> int:
    json.dump(schema(), sys.stdout, indent=2, sort_keys=True)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
