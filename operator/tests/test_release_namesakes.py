"""A name used again is a new thing: Releases deleted and made again before, during and after their traffic (R-05, R-22, K-10)."""

from __future__ import annotations

from typing import Any

import pytest
from release_world import metrics
from test_release_flow import BAD, BETTER, FIRST, NS, Installation, promoted
from test_release_flow import place as place  # noqa: PLC0414 - the fixture

OTHER_CONTENT = {"settings": {"model": {"maxOutputTokens": 77}}}


def stored(place: Installation, name: str) -> dict[str, Any]:
    return place.cluster.objects["Release", NS, name]


def make_again(place: Installation, name: str, **changes: Any) -> None:
    """Delete and apply again, as `kubectl replace --force` does: another uid, no status."""
    old = stored(place, name)
    place.cluster.remove("Release", NS, name)
    place.cluster.put(
        {**old, "metadata": {"name": name, "namespace": NS}, "spec": {**old["spec"], **changes}, "status": {}}
    )


def jobs(place: Installation) -> int:
    return sum(verb == "apply" and kind == "Job" for verb, kind, _ in place.cluster.writes)


def in_canary(place: Installation, rate: int = 95) -> None:
    promoted(place)
    place.rates = {FIRST: 92, BETTER: rate}
    place.submit(BETTER)
    place.passes(BETTER, FIRST, times=5)
    assert place.config["candidate"] == BETTER


def two(place: Installation) -> None:
    in_canary(place)
    place.passes(BETTER, FIRST, times=25)
    assert place.release(BETTER)["phase"] == "Promoted"


def three(place: Installation) -> None:
    two(place)
    place.rates[BAD] = 97
    place.submit(BAD, rollbackTo=BETTER)
    place.passes(BAD, BETTER, FIRST, times=40)
    assert place.config["serving"] == BAD


def condition(place: Installation, name: str, kind: str) -> tuple[str, str]:
    return next((c["status"], c["reason"]) for c in place.release(name)["conditions"] if c["type"] == kind)


@pytest.mark.parametrize("changes", [OTHER_CONTENT, {"rollout": {"canary": {"margin": 0.5}}}], ids=["content", "gates"])
def test_a_candidate_made_again_inherits_neither_traffic_nor_evidence(place: Installation, changes: dict[str, Any]):
    """R-05, R-22: it begins with its own checks and its own evaluation."""
    in_canary(place, rate=70)
    before = jobs(place)
    make_again(place, BETTER, **changes)
    place.passes(BETTER, times=1)
    assert place.config["candidate"] == ""
    place.passes(BETTER, FIRST, times=4)
    assert jobs(place) == before + 1
    assert [h["phase"] for h in place.release(BETTER)["history"]][:2] == ["Checks", "OfflineEval"]


def test_a_release_replaced_while_its_first_traffic_is_written_gets_none(place: Installation):
    """K-12: what was judged is compared again at the write."""
    promoted(place)
    place.rates = {FIRST: 92, BETTER: 95}
    place.submit(BETTER)
    place.passes(BETTER, times=3)
    reads = []

    def replace_before_the_commit_reads(verb: str, kind: str, name: str) -> None:
        reads.append(kind) if (verb, kind) == ("get", "ServingConfig") else None
        if reads.count("ServingConfig") == 2 and len(reads) == 2:
            reads.append("done")
            make_again(place, BETTER, **OTHER_CONTENT)

    place.cluster.fail = replace_before_the_commit_reads
    place.passes(BETTER, times=1)
    assert reads and place.config["candidate"] == ""


def test_a_lost_status_gives_no_second_look_at_the_same_evidence(place: Installation):
    """R-08: traffic goes back, and the attempt begins anew."""
    in_canary(place, rate=85)
    place.passes(BETTER, FIRST, times=20)
    assert place.release(BETTER)["phase"] == "Held" and place.config["candidate"] == BETTER
    place.cluster.put({**stored(place, BETTER), "status": {}})
    place.passes(BETTER, times=1)
    assert place.config["candidate"] == "" and place.release(BETTER)["phase"] == "RolledBack"


def test_another_content_under_the_name_of_what_serves_does_not_serve_and_blocks_nobody(place: Installation):
    """R-27, R-49, R-51: status says so, it may be deleted, and what it was may be applied again."""
    promoted(place)
    original = stored(place, FIRST)
    make_again(place, FIRST, **OTHER_CONTENT)
    place.passes(FIRST, times=4)
    assert condition(place, FIRST, "Serving")[0] == "False"
    assert "another content of the same name" in place.release(FIRST)["message"]
    place.cluster.remove("Release", NS, FIRST)
    place.cluster.put({**original, "metadata": {"name": FIRST, "namespace": NS}, "status": {}})
    place.passes(FIRST, times=10)
    assert condition(place, FIRST, "Serving")[0] == "True" and place.release(FIRST)["phase"] == "Promoted"


@pytest.mark.parametrize("what", ["made again", "attempt raised"])
def test_a_rollback_target_that_was_touched_serves_on_when_gone_back_to(place: Installation, what: str):
    """R-42: the traffic stays where the way back led, and goes no further."""
    three(place)
    if what == "made again":
        make_again(place, BETTER)
    else:
        place.submit(BETTER, attempt=2)
    place.passes(BETTER, times=3)
    place.submit(BAD, intent="Abort")
    place.passes(BAD, BETTER, FIRST, times=8)
    assert place.config["serving"] == BETTER
    assert place.release(BETTER)["phase"] == "Promoted" and condition(place, BETTER, "Serving")[0] == "True"


def test_two_releases_that_name_each_other_as_their_way_back_do_not_pass_traffic_on_for_ever(place: Installation):
    """K-27, R-38."""
    two(place)
    place.rates = {FIRST: 40, BETTER: 92}
    make_again(place, FIRST, rollbackTo=BETTER)
    place.passes(FIRST, BETTER, times=40)
    assert place.release(FIRST)["phase"] == "RolledBack"
    place.submit(BETTER, intent="Abort")
    place.passes(FIRST, BETTER, times=3)
    generation = place.config["generation"]
    place.submit(FIRST, rollbackTo=BETTER, intent="Abort")
    place.passes(FIRST, BETTER, times=10)
    assert place.config["generation"] == generation
    assert "is aborted itself" in place.release(FIRST)["message"]


def test_a_lost_status_does_not_forget_what_the_rollback_target_served(place: Installation):
    """R-39, K-11: it is remembered with the pointer."""
    two(place)
    make_again(place, FIRST, **OTHER_CONTENT)
    place.cluster.put({**stored(place, BETTER), "status": {}})
    place.passes(BETTER, times=8)
    assert condition(place, BETTER, "RollbackReady")[0] == "False"
    place.submit(BETTER, intent="Abort")
    place.passes(BETTER, times=4)
    assert place.config["serving"] == BETTER


@pytest.mark.parametrize("phase", ["Canary", "Bake"])
def test_a_release_whose_spec_cannot_be_read_any_more_loses_its_traffic_while_it_is_judged(
    place: Installation, phase: str
):
    """R-17, K-35: nobody knows its limits; one that is promoted serves on, and says so."""
    in_canary(place)
    for _ in range(40):
        if place.release(BETTER)["phase"] == phase:
            break
        place.passes(BETTER, FIRST, times=1)
    unreadable = {**stored(place, BETTER)["spec"], "eval": {}}
    place.cluster.put({**stored(place, BETTER), "spec": unreadable})
    place.passes(BETTER, times=1)
    assert (place.config["serving"], place.config["candidate"]) == (FIRST, "")
    place.passes(BETTER, times=2)
    assert "cannot be read" in place.release(BETTER)["message"]


def test_a_promoted_release_that_cannot_be_read_serves_on_and_says_so_until_it_is_aborted(place: Installation):
    """R-48, K-35."""
    two(place)
    spec = {**stored(place, BETTER)["spec"], "eval": {}}
    place.cluster.put({**stored(place, BETTER), "spec": spec})
    place.metrics = metrics(error_ratio=0.9)
    place.passes(BETTER, times=3)
    assert place.config["serving"] == BETTER and condition(place, BETTER, "Serving")[0] == "True"
    assert condition(place, BETTER, "Accepted") == ("False", "InvalidSpec")
    place.cluster.put({**stored(place, BETTER), "spec": {**spec, "intent": "Abort"}})
    place.passes(BETTER, times=2)
    assert place.config["serving"] == FIRST
