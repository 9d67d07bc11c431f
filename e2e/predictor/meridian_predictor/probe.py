"""`python -m meridian_predictor.probe`: exits 0 once this pod has answered a real completion.

For an exec startup probe: an HTTP probe cannot POST. Standard library only, so that it starts fast.
"""

import argparse
import json
import sys
import urllib.request
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="meridian_predictor.probe")
    parser.add_argument("--model-name", default="support-llm")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--timeout-seconds", type=float, default=5.0)
    args = parser.parse_args(argv)
    asked = {"role": "user", "content": "<question>Are you there?</question>"}
    body = json.dumps({"model": args.model_name, "messages": [asked], "max_tokens": 4}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{args.port}/v1/chat/completions",
        data=body,
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=args.timeout_seconds) as response:
            text = json.load(response)["choices"][0]["message"]["content"]
    except (OSError, ValueError, LookupError) as error:
        print(f"no completion yet: {error}", file=sys.stderr)
        return 1
    return 0 if text else 1


if __name__ == "__main__":
    sys.exit(main())
