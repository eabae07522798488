"""How many steps of an episode one core makes in a second, measurements aside: `python -m experiments.bench_steps`."""

from __future__ import annotations

import time
from pathlib import Path

import gymnasium

from msc_gym import CompressionTask, Evaluator, Measurement
from msc_gym.decisions import PARTS
from msc_gym.engine import Scoring
from msc_gym.engine.worker import Candidate

BASELINE = Path(__file__).parent / "baselines" / "resnet20"
BUDGETS = {"Prune": {"macs": 0.5}, "Quantize": {"bops": 0.1}, "Compress": {"bops": 0.05}}
EPISODES, ROUNDS = 200, 3


def unmeasured(candidate: Candidate, scoring: Scoring) -> Measurement:
    """No engine."""
    return Measurement("none", error="not measured")


def steps_per_second(env: gymnasium.Env) -> float:
    """Of processor time, for the steps before the last, with random actions that were drawn before."""
    spent, steps = 0.0, len(env.unwrapped.task.sites) - 1
    for _ in range(EPISODES):
        env.reset()
        actions = [env.action_space.sample() for _ in range(steps)]
        start = time.process_time()
        for action in actions:
            env.step(action)
        spent += time.process_time() - start
    return EPISODES * steps / spent


def main() -> None:
    """Print, for ResNet-20, the best of some rounds: the others were disturbed."""
    task = CompressionTask(BASELINE, "fashion_mnist", calibration=10, bits=(4, 8, 32), decide=PARTS)
    task.pruner, task.cost_model  # noqa: B018  what all three need
    for name, budget in BUDGETS.items():
        limited = task.changed(budget=budget)
        evaluator = Evaluator(limited, worker=unmeasured)
        env = gymnasium.make(f"msc_gym:MSC/{name}-v0", task=limited, evaluator=evaluator)
        env.action_space.seed(0)
        print(f"MSC/{name}-v0: {max(steps_per_second(env) for _ in range(ROUNDS)):,.0f} steps/s", flush=True)
        env.close()


if __name__ == "__main__":
    main()
