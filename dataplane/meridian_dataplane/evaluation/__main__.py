"""`python -m meridian_dataplane.evaluation`: measures one release on its golden set and writes one report.

Environment: MERIDIAN_EVALUATION (JSON of release, uid, attempt), MERIDIAN_CONFIG_MOUNT, MERIDIAN_PUBLIC_KEYS_DIR,
MERIDIAN_GOLDEN_FILE, MERIDIAN_SERVICE, MERIDIAN_REGION, MERIDIAN_DATABASE_DSN, MERIDIAN_INGEST_DSN, MERIDIAN_ORDERS_URL,
MERIDIAN_ORDERS_TOKEN_FILE (optional), MERIDIAN_EVALUATION_CONCURRENCY (default 4).
Exit status: 0 when a report was written, whatever it says; 2 for wrong input; 1 otherwise.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from meridian_dataplane import golden
from meridian_dataplane.evaluation import judging
from meridian_dataplane.evaluation.judging import Answered
from meridian_dataplane.evaluation.running import Evaluation, ask_all
from meridian_dataplane.plane import Plane, build_plane
from meridian_dataplane.settings import Settings, SettingsError, read_settings

log = logging.getLogger("meridian.evaluation")

WRONG_INPUT = 2
_OURS = ("MERIDIAN_EVALUATION", "MERIDIAN_EVALUATION_CONCURRENCY", "MERIDIAN_INGEST_DSN", "MERIDIAN_ORDERS_URL")


class WrongInput(Exception):
    """What the Job was given cannot be evaluated; trying again changes nothing."""


@dataclass(frozen=True)
class Job:
    """The Job's environment, read once."""

    evaluation: Evaluation
    settings: Settings
    golden_file: Path
    ingest_dsn: str
    at_once: int = 4


def job_from(environment: Mapping[str, str], state_dir: Path) -> Job:
    """Raises WrongInput naming the variable; values may be secrets and are not repeated."""
    try:
        value = json.loads(environment["MERIDIAN_EVALUATION"])
        evaluation = Evaluation(str(value["release"]), str(value["uid"]), int(value["attempt"]))
        ingest_dsn = environment["MERIDIAN_INGEST_DSN"]
        at_once = int(environment.get("MERIDIAN_EVALUATION_CONCURRENCY", "4"))
        plane = {name: text for name, text in environment.items() if name not in _OURS}
        plane |= {"MERIDIAN_REPLICA": "evaluation", "MERIDIAN_STATE_DIR": str(state_dir)}
        if orders := environment.get("MERIDIAN_ORDERS_URL"):
            plane["MERIDIAN_ENDPOINTS"] = json.dumps({"orders": orders})
        settings = read_settings(plane)
    except KeyError as missing:
        raise WrongInput(f"{missing} is missing") from missing
    except SettingsError as wrong:
        raise WrongInput(str(wrong)) from wrong
    except (TypeError, ValueError) as wrong:
        raise WrongInput("MERIDIAN_EVALUATION or MERIDIAN_EVALUATION_CONCURRENCY cannot be read") from wrong
    file = Path(environment.get("MERIDIAN_GOLDEN_FILE", "/etc/meridian/golden/golden.jsonl"))
    return Job(evaluation, settings, file, ingest_dsn, at_once)


async def evaluate(job: Job) -> dict[str, Any]:
    """The report. Raises WrongInput for a golden set or a configuration that cannot be used."""
    try:
        cases = golden.load(job.golden_file)
    except (OSError, golden.BadGoldenSet) as wrong:
        raise WrongInput(f"golden set: {wrong}") from wrong
    async with build_plane(job.settings, poll_configuration=False) as plane:
        _check_configuration(plane, job.evaluation)
        answers = await ask_all(plane, cases, job.evaluation, at_once=job.at_once)
        epoch = plane.snapshot().serving.index.epoch
    results = {
        case.id: judging.score(case, answer) if isinstance(answer := answers[case.id], Answered) else answer
        for case in cases
    }
    return judging.report(cases, results) | {
        "release": job.evaluation.release,
        "epoch": epoch,
        "corpusFingerprint": await _fingerprint(job.ingest_dsn, epoch),
        "goldenDigest": golden.digest(job.golden_file),
    }


def _check_configuration(plane: Plane, evaluation: Evaluation) -> None:
    live = plane.live
    if live.snapshot is None:
        raise WrongInput(f"no valid configuration is mounted: {live.refused.reason if live.refused else 'none found'}")
    if live.snapshot.serving.release != evaluation.release:
        raise WrongInput(f"the configuration serves {live.snapshot.serving.release}, not {evaluation.release}")


async def _fingerprint(dsn: str, epoch: str) -> str:
    async with await psycopg.AsyncConnection.connect(dsn, connect_timeout=5) as connection:
        cursor = await connection.execute("select corpus_fingerprint from meridian.epochs where name = %s", [epoch])
        row = await cursor.fetchone()
    return row[0] if row else ""


def write(dsn: str, evaluation: Evaluation, found: dict[str, Any]) -> None:
    """One row for each release and attempt; a repeated Job replaces its own."""
    with psycopg.connect(dsn, connect_timeout=5) as connection:
        connection.execute(
            """
            insert into meridian.evaluation_reports (release_uid, attempt, kind, release, report)
            values (%s, %s, 'offline', %s, %s)
            on conflict (release_uid, attempt, kind) do update
              set release = excluded.release, report = excluded.report, created_at = now()
            """,
            [evaluation.uid, evaluation.attempt, evaluation.release, Jsonb(found)],
        )


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each question helps nobody
    with tempfile.TemporaryDirectory(prefix="meridian-") as state_dir:
        try:
            job = job_from(os.environ, Path(state_dir))
            found = asyncio.run(evaluate(job))
        except WrongInput as wrong:
            log.error("%s", wrong)
            return WRONG_INPUT
        write(job.ingest_dsn, job.evaluation, found)
    log.info("release %s: %s", job.evaluation.release, json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
