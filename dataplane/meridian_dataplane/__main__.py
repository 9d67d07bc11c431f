"""`python -m meridian_dataplane`: serves until SIGTERM."""

from __future__ import annotations

import asyncio
import sys

from meridian_dataplane.settings import Settings, SettingsError, read_settings


def main() -> int:
    """Exit codes: 0 after a drain, 1 when it must not serve, 2 when its environment is wrong."""
    try:
        settings = read_settings()
    except SettingsError as faults:
        sys.stderr.write(f"{faults}\n")
        return 2
    from meridian_dataplane.telemetry import configure_logging

    configure_logging()
    return asyncio.run(_run(settings))


async def _run(settings: Settings) -> int:
    # Imported late: a wrong environment is said at once, not after everything has been loaded.
    from meridian_dataplane.app import admin_app, public_app
    from meridian_dataplane.plane import build_plane
    from meridian_dataplane.server import serve, server

    async with build_plane(settings) as plane:
        left = settings.grace_seconds - settings.beat_seconds
        public = server(public_app(plane), settings.host, settings.public_port, left)
        admin = server(admin_app(plane), settings.host, settings.admin_port, 1)
        return await serve(plane, public, admin, beat_s=settings.beat_seconds, grace_s=settings.grace_seconds)


if __name__ == "__main__":
    sys.exit(main())
