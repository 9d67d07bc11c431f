"""`meridian token`: a token from the development issuer, for curl and for trying things."""

import argparse
import os
import sys

from meridian_cli.identity import DEFAULT_ISSUER, DEFAULT_SUB, ISSUER_VARIABLE, Identity, NoToken, mint_token


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_identity_arguments(parser)
    parser.add_argument("--ttl-seconds", type=int, default=3600, help="life, at most one hour")


def add_identity_arguments(parser: argparse.ArgumentParser, tenant_required: bool = True) -> None:
    """The flags that say who asks; shared with `meridian ask`."""
    parser.add_argument("--tenant", required=tenant_required, help="for instance acme-eu")
    parser.add_argument("--sub", default=DEFAULT_SUB, help="the user's id")
    parser.add_argument("--group", action="append", default=[], help="an ACL group; repeatable")
    parser.add_argument("--role", action="append", default=[], help="a role; repeatable")
    parser.add_argument(
        "--issuer",
        default=os.environ.get(ISSUER_VARIABLE, DEFAULT_ISSUER),
        help=f"the development issuer (default: ${ISSUER_VARIABLE} or {DEFAULT_ISSUER})",
    )


def identity_from(args: argparse.Namespace) -> Identity:
    return Identity(args.tenant, args.sub, tuple(args.group), tuple(args.role))


def run(args: argparse.Namespace) -> int:
    try:
        print(mint_token(args.issuer.rstrip("/"), identity_from(args), args.ttl_seconds))
    except NoToken as error:
        print(f"meridian token: {error}", file=sys.stderr)
        return 1
    return 0
