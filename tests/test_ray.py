"""Ray: the same measurements as in this process, workers where the target is, and faults that cost one trial."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Mapping

import psutil
import pytest

from msc_core import MscError
from msc_core.backends import Target
from msc_core.errors import Unavailable
from msc_core.plan import Plan
from msc_gym import Evaluator
from msc_gym.engine import Limits, Measurement, RayPool, Scoring, SerialPool, stages
from tests.pool_tools import accuracies, scratches, temporary  # noqa: F401

SCORING = Scoring(latency=False)
JOBS = [{"value": i} for i in range(6)]
CPU_HOST = {"target:onnxruntime": 1, "target:tvm": 1}
GPU_HOST = {"target:tensorrt": 1}


class Toy:
    """Says where it ran. `kill` ends its process, `murder` its actor, `hang` stays in the stage "build"."""

    def __call__(self, candidate: Mapping[str, int], scoring: Scoring) -> Measurement:
        stages.enter("build")
        if "kill" in candidate:
            os.kill(os.getpid(), candidate["kill"])
        if "murder" in candidate:
            os.kill(os.getppid(), candidate["murder"])
        time.sleep(600 if "hang" in candidate else 0)
        ancestors = " ".join(str(process.pid) for process in psutil.Process().parents())
        return Measurement(f"p{candidate['value']}", candidate["value"] / 100, 1, versions={"ancestors": ancestors})


TOY = Toy()


def run(pool, jobs, target="onnxruntime"):
    """What each candidate came to, in order."""
    found = dict(pool.run(TOY, [(job, SCORING) for job in jobs], Target.parse(target)))
    return [found[index] for index in range(len(jobs))]


def test_a_ray_of_its_own_measures_the_same_and_ends_with_the_pool(tiny_task):
    before = set(psutil.Process().children(recursive=True)), scratches()
    group = tiny_task.groups[0]
    plans = [tiny_task.pruner.plan({group.name: group.size // 2}), tiny_task.identity, Plan("0" * 64)]
    found = []
    for where in ("serial", "ray:2"):
        with Evaluator(tiny_task, pool=where) as evaluator:
            measured = evaluator.evaluate(plans, latency=False)
        found.append([dataclasses.replace(m, seconds=0.0) for m in measured])
    assert found[0] == found[1]
    assert [m.ok for m in found[0]] == [True, True, False]
    assert (set(psutil.Process().children(recursive=True)), scratches()) == before


@pytest.fixture(scope="module")
def cluster():
    """Two hosts, as far as Ray can tell, of which the second claims a GPU."""
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": 100_000_000}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 4, "resources": CPU_HOST, "include_dashboard": False} | store
    )
    cluster.add_node(num_cpus=4, num_gpus=1, resources=GPU_HOST, **store)
    yield cluster
    import ray

    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def pool(cluster):
    with contextlib.closing(RayPool(2, cluster.address, Limits(build=1.0))) as two:
        yield two


def raylets(cluster) -> list[str]:
    """The process of each host that all its workers descend from."""
    return [str(node.all_processes["raylet"][0].process.pid) for node in cluster.list_all_nodes()]


@pytest.mark.parametrize("size", [1, 4])
def test_any_number_of_workers_gives_the_same(cluster, size):
    with contextlib.closing(RayPool(size, cluster.address)) as pool:
        assert accuracies(run(pool, JOBS)) == accuracies(run(SerialPool(), JOBS)) == [j["value"] / 100 for j in JOBS]


@pytest.mark.parametrize(("target", "host"), [("tvm:llvm", 0), ("tensorrt:fp16", 1)])
def test_workers_are_where_the_target_is(cluster, pool, target, host):
    here, other = raylets(cluster)[host], raylets(cluster)[1 - host]
    ancestors = [m.versions["ancestors"].split() for m in run(pool, JOBS, target)]
    assert all(here in pids and other not in pids for pids in ancestors)


def test_a_target_that_no_host_has(pool):
    with pytest.raises(Unavailable, match=re.escape("no host of the Ray cluster has 'target:torch'; found ['target:")):
        run(pool, JOBS, "torch")


def test_hosts_that_differ_cannot_be_compared(cluster, monkeypatch):
    with contextlib.closing(RayPool(1, cluster.address)) as pool:
        monkeypatch.setattr(pool, "place", lambda target: ("another processor", {}))
        with pytest.raises(MscError, match="are on hosts that differ, so their latencies cannot be compared"):
            run(pool, JOBS)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kill": 9}, "build: the worker was killed by SIGKILL"),
        ({"hang": 1}, "build took longer than 1 s; the worker was killed"),
        ({"murder": 9}, "the worker's host or its actor died"),
    ],
    ids=["killed", "hung", "actor"],
)
def test_a_fault_costs_one_trial(pool, fault, message):
    failed, *others = run(pool, [JOBS[0] | fault, *JOBS[1:]])
    assert message in failed.error
    assert accuracies(others) == [j["value"] / 100 for j in JOBS[1:]]


def test_whoever_stops_listening_leaves_nothing_running(pool):
    jobs = [(JOBS[0], SCORING), (JOBS[1] | {"hang": 1}, SCORING)]
    found = pool.run(TOY, jobs, Target.parse("onnxruntime"))
    assert next(found)[0] == 0
    found.close()
    run(pool, JOBS)
    assert len(pool._actors) == 2
    assert accuracies(run(pool, JOBS)) == [j["value"] / 100 for j in JOBS]
