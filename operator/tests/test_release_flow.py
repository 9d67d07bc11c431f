"""The sample's story in memory: observe, decide and act together, from nothing to promoted, replaced and rolled back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from release_world import GOOD_REPORT, SILENT, metrics
from serving_rig import write_key
from test_release_samples import OBJECTS

from meridian_api.names import derived_name
from meridian_operator.cluster import Conflict, Key, NotFound
from meridian_operator.conditions import is_true
from meridian_operator.converge import Kind, World, converge
from meridian_operator.evidence.evaluation import REPORT
from meridian_operator.evidence.outcomes import COUNTS
from meridian_operator.memory_cluster import MemoryCluster
from meridian_operator.memory_store import MemoryStore
from meridian_operator.release import measure
from meridian_operator.release.decide import decide
from meridian_operator.release.observe import observe
from meridian_operator.settings import Settings

NS = "meridian"
FIRST, BETTER, BAD = "2026-10-28.1", "2026-11-04.1", "2026-11-11.1"
KIND = Kind("Release", observe, decide)
REPLICAS = ("dataplane-a", "dataplane-b")


class Installation:
    """Everything around the operator: pods, replicas that apply what is stored, users whose requests are judged."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        write_key(folder)
        self.cluster, self.store = MemoryCluster(), MemoryStore()
        self.now = datetime(2026, 11, 4, 12, tzinfo=UTC)
        self.metrics: Any = metrics()
        self.rates: dict[str, float] = {}
        """Task success of each release's answers, in percent; a release without an entry gets no traffic."""
        self.applying = True
        self.reports: dict[str, Any] = {}
        settings = Settings("op", "", "", "docker.io/meridian/dataplane@sha256:" + "a" * 64, signing_dir=str(folder))
        self.world = World(self.cluster, self.store, settings, lambda: self.now, lambda: 1)
        self.store.answers |= {COUNTS: self._counts, REPORT: self._report}

        async def read(*_: object) -> Any:
            return self.metrics

        patch.setattr(measure, "read_metrics", read)
        self._slice("meridian-dataplane", *REPLICAS)
        for manifest in OBJECTS:
            if manifest["kind"] != "Release":
                self.cluster.put(manifest)
        self._warm("support-llm", "v12", "v13", "v14-bad")
        self._warm("support-llm-small", "v7")
        self.status("IndexEpoch", "idx-2026-10-27", {"phase": "Built"})

    def submit(self, name: str, **changes: Any) -> None:
        manifest = next(m for m in OBJECTS if m["kind"] == "Release" and m["metadata"]["name"] == name)
        live = self.cluster.objects.get(("Release", NS, name))
        self.cluster.put({**(live or manifest), "spec": {**manifest["spec"], **changes}})

    def status(self, kind: str, name: str, status: dict[str, Any]) -> None:
        self.cluster.put({**self.cluster.objects[kind, NS, name], "status": status})

    def release(self, name: str) -> dict[str, Any]:
        return self.cluster.objects["Release", NS, name].get("status") or {}

    @property
    def config(self) -> dict[str, Any]:
        return self.cluster.objects["ServingConfig", NS, "support"]["spec"]

    def passes(self, *names: str, times: int = 12, seconds: float = 2) -> None:
        """The operator looks at each release; then the replicas apply what is stored; then time goes on."""
        for _ in range(times):
            for name in names:
                try:
                    asyncio.run(converge(Key("Release", NS, name), KIND, self.world))
                except Conflict:
                    continue
            self._apply_what_is_stored()
            self._finish_jobs()
            self.now += timedelta(seconds=seconds)

    def _apply_what_is_stored(self) -> None:
        stored = self.cluster.objects.get(("ServingConfig", NS, "support"))
        if stored and self.applying:
            generation = stored["spec"]["generation"]
            replicas = [{"replica": r, "generation": generation} for r in REPLICAS]
            self.status("ServingConfig", "support", {"replicas": replicas, "highestAccepted": generation})

    def _finish_jobs(self) -> None:
        for (kind, _, name), job in list(self.cluster.objects.items()):
            if kind == "Job":
                owner = job["metadata"]["ownerReferences"][0]
                self.reports.setdefault(owner["uid"], GOOD_REPORT)
                self.status(kind, name, {"conditions": [{"type": "Complete", "status": "True"}]})

    def _report(self, asked: tuple[object, ...]) -> list[dict[str, Any]]:
        report = self.reports.get(str(asked[0]))
        golden = next(m for m in OBJECTS if m["kind"] == "Release")["spec"]["eval"]["goldenSet"]["digest"]
        return [{"report": {**report, "goldenDigest": golden}}] if report else []

    def _counts(self, asked: tuple[object, ...]) -> list[dict[str, Any]]:
        since: Any = asked[4]
        n = int((self.now - since).total_seconds() * 10)
        return [self._row(str(asked[5]), str(asked[6]), n), self._row(str(asked[7]), "serving", n)]

    def _row(self, release: str, arm: str, n: int) -> dict[str, Any]:
        n = n if release in self.rates else 0
        good = int(n * self.rates.get(release, 0) / 100)
        return {
            "release": release, "arm": arm, "requests": n, "errors": 0, "citations": 2 * n, "citations_invalid": 0, "judged": n,
            "successes": good, "step_requests": n, "step_judged": n, "step_successes": good, "judged_cost_usd": 0.003 * n,
        }  # fmt: skip

    def _slice(self, service: str, *pods: str) -> None:
        self.cluster.put(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": f"{service}-x",
                    "namespace": NS,
                    "labels": {"kubernetes.io/service-name": service},
                },
                "endpoints": [{"conditions": {"ready": True}, "targetRef": {"kind": "Pod", "name": p}} for p in pods],
            }
        )

    def _warm(self, pool: str, *versions: str) -> None:
        for version in versions:
            self._slice(derived_name(pool, version), f"{pool}-{version}")
        self.status("InferencePool", pool, {"versions": [{"name": v, "warm": True} for v in versions]})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    return Installation(tmp_path, monkeypatch)


def promoted(place: Installation) -> Installation:
    place.submit(FIRST)
    place.passes(FIRST)
    return place


def test_the_first_release_is_evaluated_and_serves_without_a_canary(place: Installation):
    promoted(place)
    assert place.release(FIRST)["phase"] == "Promoted"
    assert [h["phase"] for h in place.release(FIRST)["history"]] == ["Checks", "OfflineEval", "Bake", "Promoted"]
    assert (place.config["serving"], place.config["generation"]) == (FIRST, 1)
    assert is_true(place.release(FIRST), "Promoted") and is_true(place.release(FIRST), "Ready")
    assert len([w for w in place.cluster.writes if w[0] == "apply" and w[1] == "Job"]) == 1
    gate = {e["name"]: e["verdict"] for e in place.release(FIRST)["evidence"]}
    assert gate["offline-recall-at-6"] == "Pass"


def test_a_better_release_is_promoted_through_its_canary(place: Installation):
    """R-34."""
    promoted(place)
    place.rates = {FIRST: 92, BETTER: 95}
    place.submit(BETTER)
    place.passes(BETTER, times=6)
    assert place.release(BETTER)["phase"] == "Canary"
    assert (place.config["candidate"], place.config["candidateWeightPercent"]) == (BETTER, 50)
    place.passes(BETTER, FIRST, times=20)
    assert place.release(BETTER)["phase"] == "Promoted" and place.config["serving"] == BETTER
    look = next(e for e in place.release(BETTER)["evidence"] if e["name"] == "task-success")
    assert look["verdict"] == "Pass" and look["plannedN"] == 155 and look["candidateN"] >= 155
    assert not is_true(place.release(FIRST), "Serving") and is_true(place.release(FIRST), "Ready")


def test_a_bad_release_is_rolled_back_with_the_reason_and_never_had_more_than_its_weight(place: Installation):
    """R-31, R-42, R-49: the spec is not touched."""
    promoted(place)
    place.rates = {FIRST: 92, BETTER: 50}
    place.submit(BETTER)
    weights = set()
    for _ in range(20):
        place.passes(BETTER, times=1)
        weights.add((place.config["serving"], place.config.get("candidateWeightPercent", 0)))
    stored = place.release(BETTER)
    assert weights == {(FIRST, 0), (FIRST, 50)}
    assert stored["phase"] == "RolledBack" and stored["traffic"]["acknowledged"]
    assert stored["message"].startswith("Rolled back: task success 50.0% (")
    assert place.cluster.objects["Release", NS, BETTER]["spec"]["rollbackTo"] == FIRST
    assert place.cluster.objects["Release", NS, BETTER]["metadata"]["generation"] == 1
    assert is_true(stored, "Degraded") and stored["servingRelease"] == FIRST


def test_rolled_back_waits_for_every_ready_replica(place: Installation):
    """R-30."""
    promoted(place)
    place.rates = {FIRST: 92, BETTER: 50}
    place.submit(BETTER)
    place.passes(BETTER, times=5)
    place.applying = False
    place.passes(BETTER, times=6)
    assert place.release(BETTER)["phase"] == "RolledBack" and not place.release(BETTER)["traffic"].get("acknowledged")
    place.applying = True
    place.passes(BETTER, times=3)
    assert place.release(BETTER)["traffic"]["acknowledged"]


def test_silence_holds_the_canary_until_the_deadline_and_then_gives_the_traffic_back(place: Installation):
    """R-01."""
    promoted(place)
    place.rates, place.metrics = {FIRST: 92, BETTER: 95}, SILENT
    place.submit(BETTER)
    place.passes(BETTER, times=40)
    assert place.release(BETTER)["phase"] == "Canary" and place.config["candidateWeightPercent"] == 50
    place.passes(BETTER, times=30, seconds=20)
    assert place.release(BETTER)["phase"] == "Held" and place.config["candidate"] == ""


def test_a_store_that_is_down_promotes_nothing_and_an_abort_still_works(place: Installation):
    """R-01."""
    promoted(place)
    place.rates = {FIRST: 92, BETTER: 95}
    place.submit(BETTER)
    place.passes(BETTER, times=6)
    place.store.down = True
    place.passes(BETTER, times=20)
    assert place.release(BETTER)["phase"] == "Canary"
    place.submit(BETTER, intent="Abort")
    place.passes(BETTER, times=3)
    assert place.release(BETTER)["phase"] == "RolledBack" and place.config["candidate"] == ""


def test_a_second_attempt_runs_the_same_content_again(place: Installation):
    """R-24."""
    promoted(place)
    place.rates = {FIRST: 92, BETTER: 50}
    place.submit(BETTER)
    place.passes(BETTER, times=20)
    place.rates[BETTER] = 95
    place.submit(BETTER, attempt=2)
    place.passes(BETTER, times=30)
    assert place.release(BETTER)["phase"] == "Promoted" and place.release(BETTER)["attempt"] == 2


def test_a_missing_prompt_is_named_and_the_release_goes_on_when_it_appears(place: Installation):
    """R-29."""
    prompt = place.cluster.objects["ConfigMap", NS, "prompt-support-1"]
    place.cluster.remove("ConfigMap", NS, "prompt-support-1")
    place.submit(FIRST)
    place.passes(FIRST, times=3)
    accepted = next(c for c in place.release(FIRST)["conditions"] if c["type"] == "Accepted")
    assert accepted["status"] == "False" and "prompt-support-1" in accepted["message"]
    place.cluster.put(prompt)
    place.passes(FIRST)
    assert place.release(FIRST)["phase"] == "Promoted"


def test_releases_applied_together_run_one_after_the_other(place: Installation):
    """R-21, R-28: the second waits for the first, the third for the second."""
    place.rates = {FIRST: 92, BETTER: 95, BAD: 50}
    for name in (FIRST, BETTER, BAD):
        place.submit(name)
    place.passes(BAD, BETTER, FIRST, times=60)
    assert [place.release(n)["phase"] for n in (FIRST, BETTER, BAD)] == ["Promoted", "Promoted", "RolledBack"]
    assert place.config["serving"] == BETTER


def test_a_lost_status_write_changes_nothing_in_the_end(place: Installation):
    """K-15, K-17: SIGKILL between the switch and the status, each time."""
    promoted(place)
    place.rates = {FIRST: 92, BETTER: 50}
    place.submit(BETTER)
    lost = []

    def fail(verb: str, kind: str, name: str) -> Exception | None:
        generation = place.config["generation"]
        if (
            verb == "replace_status"
            and kind == "Release"
            and name == BETTER
            and generation not in lost
            and generation > 1
        ):
            lost.append(generation)
            return NotFound("killed")
        return None

    place.cluster.fail = fail  # type: ignore[assignment]
    place.passes(BETTER, times=25)
    assert len(lost) == 2
    assert place.release(BETTER)["phase"] == "RolledBack" and place.config["candidate"] == ""
    assert place.release(BETTER)["message"].startswith("Rolled back: task success")


def test_once_all_is_done_nothing_is_written(place: Installation):
    """K-27."""
    promoted(place)
    place.rates = {FIRST: 92, BETTER: 50}
    place.submit(BETTER)
    place.passes(FIRST, BETTER, times=25)
    before = len(place.cluster.writes)
    place.passes(FIRST, BETTER, times=10, seconds=30)
    assert [w for w in place.cluster.writes[before:] if w[1] != "ServingConfig"] == []


def test_nothing_is_promoted_away_from_a_release_whose_prompt_is_gone(place: Installation):
    """R-39, R-40: while it serves its last good manifest is kept; promoted away from, it could not be compiled any more."""
    promoted(place)
    place.rates = {FIRST: 92, BETTER: 95}
    place.submit(BETTER)
    place.passes(BETTER, times=6)
    prompt = place.cluster.objects["ConfigMap", NS, "prompt-support-1"]
    place.cluster.remove("ConfigMap", NS, "prompt-support-1")
    place.passes(BETTER, times=20)
    assert place.release(BETTER)["phase"] == "Canary" and place.config["serving"] == FIRST
    ready = next(c for c in place.release(BETTER)["conditions"] if c["type"] == "RollbackReady")
    assert ready["status"] == "False" and "prompt-support-1" in ready["message"]
    place.cluster.put(prompt)
    place.passes(BETTER, times=5)
    assert place.config["serving"] == BETTER


def test_the_way_back_is_not_to_another_content_under_the_same_name(place: Installation):
    """R-22, R-39, K-10: the name is the same, the release is not; nothing is gone back to until it declares what it served."""
    promoted(place)
    place.rates = {FIRST: 92, BETTER: 95}
    place.submit(BETTER)
    place.passes(BETTER, FIRST, times=30)
    assert place.release(BETTER)["phase"] == "Promoted"
    original = place.cluster.objects["Release", NS, FIRST]
    other = {**original["spec"], "prompt": place.cluster.objects["Release", NS, BETTER]["spec"]["prompt"]}
    place.cluster.remove("Release", NS, FIRST)
    place.cluster.put({**original, "spec": other, "status": {}})
    place.submit(BETTER, intent="Abort")
    place.passes(BETTER, times=5)
    assert place.config["serving"] == BETTER
    assert "was made again with other content" in place.release(BETTER)["message"]
    ready = next(c for c in place.release(BETTER)["conditions"] if c["type"] == "RollbackReady")
    assert ready["status"] == "False" and "other content" in ready["message"]
    place.cluster.put({**original, "metadata": {**original["metadata"], "uid": "another"}, "status": {}})
    place.passes(BETTER, times=5)
    assert place.config["serving"] == FIRST and place.release(BETTER)["phase"] == "RolledBack"


def test_the_way_back_of_what_has_traffic_says_so(place: Installation):
    """R-39, R-40: the admission policy keeps it from being deleted by that; what it replaced in its turn may go."""
    promoted(place)
    place.rates = {FIRST: 92, BETTER: 95}
    place.submit(BETTER)
    place.passes(BETTER, FIRST, times=6)
    assert place.config["candidate"] == BETTER and is_true(place.release(FIRST), "RollbackTarget")
    place.passes(BETTER, FIRST, times=20)
    assert place.config["serving"] == BETTER and is_true(place.release(FIRST), "RollbackTarget")
    place.submit(BETTER, intent="Abort")
    place.passes(BETTER, FIRST, times=4)
    assert not is_true(place.release(FIRST), "RollbackTarget")


def test_a_candidate_is_not_promoted_away_from_a_release_that_was_replaced(place: Installation):
    """R-39: while it serves, the stored content answers; once left, there would be no way back to it."""
    promoted(place)
    place.rates = {FIRST: 92, BETTER: 95}
    place.submit(BETTER)
    place.passes(BETTER, times=6)
    original = place.cluster.objects["Release", NS, FIRST]
    settings = {"model": {"maxOutputTokens": 77}}
    place.cluster.put({**original, "spec": {**original["spec"], "settings": settings}, "status": {}})
    place.passes(BETTER, times=20)
    assert place.release(BETTER)["phase"] == "Canary" and place.config["serving"] == FIRST
    place.submit(BETTER, intent="Abort")
    place.passes(BETTER, times=3)
    assert (place.config["serving"], place.config["candidate"]) == (FIRST, "")


def test_a_deleted_serving_config_is_stored_again_by_the_release_that_served(place: Installation):
    """K-18: by the release that served last only."""
    promoted(place)
    place.rates = {FIRST: 92, BETTER: 95}
    place.submit(BETTER)
    place.passes(BETTER, FIRST, times=30)
    place.cluster.remove("ServingConfig", NS, "support")
    place.passes(FIRST, BETTER, times=3)
    assert place.config["serving"] == BETTER
    assert place.release(BETTER)["phase"] == "Promoted" and is_true(place.release(BETTER), "Serving")
    before = len(place.cluster.writes)
    place.passes(FIRST, BETTER, times=5, seconds=30)
    assert [w for w in place.cluster.writes[before:] if w[1] != "ServingConfig"] == []


def test_an_abort_lets_a_deleted_serving_config_stay_deleted(place: Installation):
    """The documented end of a service."""
    promoted(place)
    place.submit(FIRST, intent="Abort")
    place.passes(FIRST, times=3)
    assert place.config["serving"] == FIRST
    place.cluster.remove("ServingConfig", NS, "support")
    place.passes(FIRST, times=5)
    assert ("ServingConfig", NS, "support") not in place.cluster.objects
    assert not is_true(place.release(FIRST), "Serving")
