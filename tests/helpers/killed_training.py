"""Train a run in a process that kills itself with SIGKILL in the middle of an update.

    python -m tests.helpers.killed_training CONFIG RUN STEP

CONFIG is the configuration as JSON, RUN the run folder, and STEP the number of the update that never completes.
"""

import json
import os
import signal
import sys

from train import RunConfig, train
from train.learn.optimizer import Adam


def main():
    config, run_dir, step = sys.argv[1:]
    original_step = Adam.step

    def killed_step(self, lr, scale):
        if self.steps + 1 == int(step):
            os.kill(os.getpid(), signal.SIGKILL)
        original_step(self, lr, scale)

    Adam.step = killed_step
    train(RunConfig.from_dict(json.loads(config)), run_dir, progress=False)


if __name__ == "__main__":
    main()
