"""`python -m meridian_dataplane.ingestion`: one completion of the index Job.

Environment: MERIDIAN_EPOCH (JSON of name, uid, spec), MERIDIAN_INGEST_DSN, JOB_COMPLETION_INDEX (0 when absent),
MERIDIAN_SOURCES_DIR and MERIDIAN_GOLDEN_FILE (defaults under /etc/meridian).
Exit status: 0 done; 2 the input is wrong and trying again is useless; 1 anything else, to be tried again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import psycopg

from meridian_api.v1alpha1.indexepoch import IndexEpochSpec
from meridian_dataplane import golden
from meridian_dataplane.ingestion import building, progress, recall
from meridian_dataplane.ingestion.building import Shard, WrongInput
from meridian_dataplane.ingestion.progress import Epoch

log = logging.getLogger("meridian.ingestion")

WRONG_INPUT = 2


def shard_from(environment: Mapping[str, str]) -> Shard:
    """Raises KeyError or ValueError (pydantic's included) when the environment is not what the operator sets."""
    value = json.loads(environment["MERIDIAN_EPOCH"])
    return Shard(
        epoch=Epoch(value["name"], value["uid"], IndexEpochSpec.from_wire(value["spec"], unknown="ignore")),
        index=int(environment.get("JOB_COMPLETION_INDEX", "0")),
        sources=Path(environment.get("MERIDIAN_SOURCES_DIR", "/etc/meridian/sources")),
    )


def run(shard: Shard, dsn: str, golden_file: Path) -> int:
    """Build one shard and, as the last one to finish, the verdict on the epoch. Returns the exit status."""
    # Autocommit: every transaction is explicit, so that what is published is there at once.
    with psycopg.connect(dsn, autocommit=True, application_name="meridian-ingestion") as connection:
        progress.begin(connection, shard.epoch, shard.index)
        try:
            building.build(connection, shard)
        except WrongInput as wrong:
            progress.end_shard(connection, shard.epoch, shard.index, str(wrong))
            log.error("epoch %s: %s", shard.epoch.name, wrong)
            return WRONG_INPUT
        if not progress.end_shard(connection, shard.epoch, shard.index, ""):
            log.info("epoch %s: shard %d is done", shard.epoch.name, shard.index)
            return 0
        measured, digest = None, ""
        if golden_file.is_file():
            try:
                cases = golden.load(golden_file)
                measured = asyncio.run(recall.at_6(dsn, shard.epoch.name, shard.epoch.spec.embedding.ident, cases))
            except golden.BadGoldenSet as wrong:
                progress.end_shard(connection, shard.epoch, shard.index, f"golden set: {wrong}")
                return WRONG_INPUT
            digest = golden.digest(golden_file)
        found = progress.complete(connection, shard.epoch, measured, digest)
        log.info("epoch %s is built: %s", shard.epoch.name, json.dumps(found))
    return 0


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        shard = shard_from(os.environ)
        dsn = os.environ["MERIDIAN_INGEST_DSN"]
    except (KeyError, ValueError) as wrong:
        log.error("the environment is not complete: %s", wrong)
        return WRONG_INPUT
    return run(shard, dsn, Path(os.environ.get("MERIDIAN_GOLDEN_FILE", "/etc/meridian/golden/golden.jsonl")))


if __name__ == "__main__":
    sys.exit(main())
