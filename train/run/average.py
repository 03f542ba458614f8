"""The mean of the weights of several checkpoints of a run (section 6.1 of the paper)."""

from pathlib import Path

import npx
from train.errors import UserError
from train.run.checkpoint import MODEL, check_same_run, is_imported, weights_digest
from train.run.folder import TRY_MORE_CHECKPOINTS, RunFolder, not_a_run_error
from train.run.storage import IDENTITY, damaged_error, read_arrays, read_state, write_folder

RUN_IDENTITY = ("task", "text_sha256", "config")  # these keys of state.json and those in IDENTITY identify a run


def average_checkpoints(run_dir: str | Path, last: int | None = None, best: bool = False) -> Path:
    """Write the mean weights of the newest or best checkpoints to checkpoints/averaged (section 6.1).

    The sums are computed in float64, and the mean has the dtype of the checkpoints. Only the sums and one array of one
    checkpoint are in memory at a time.

    Args:
        run_dir: the run folder.
        last: the number of newest checkpoints to average. Default: all, but at least 2 and at most 5.
        best: whether to average the best checkpoints (see train.keep_best) instead of the newest ones.

    Returns the path of the averaged checkpoint. Raises UserError if there are fewer than `last` checkpoints, if one is
    damaged, if they belong to different runs, or if another program is writing to the run.
    """
    run = RunFolder(run_dir)
    folders = run.ranked_paths if best else run.step_paths
    if not folders() and not run.has_run_files():
        raise not_a_run_error(run.path, "a run folder")
    with run.lock("average") as lock:
        available = folders()
        if best or last is None:
            last = max(2, len(available) if best else min(5, len(available)))
        if last < 1 or len(available) < last:
            suggestion = f"--last {len(available)}" if len(available) > 1 else TRY_MORE_CHECKPOINTS
            suggestion = "a run that `train` has written" if is_imported(run) else suggestion
            expected = f"{last} checkpoints"
            if best:
                expected = "at least 2 checkpoints best-N"
                suggestion = "--resume with train.best_metric, train.keep_best of 2 or more, and more validations"
            raise UserError(
                f"average: expected {expected} in {run.checkpoints}; got {len(available)}; try {suggestion}"
            )
        paths = available[-last:]
        states = [read_state(path) for path in paths]
        for path, state in zip(paths, states, strict=True):
            check_same_run(path, state, paths[-1], states[-1], "average: ", "a smaller --last")
        total: dict[str, npx.Array] = {}
        expected = f"expected the arrays of {paths[0]}"
        for path, state in zip(paths, states, strict=True):
            names = set()
            for name, array in read_arrays(path / MODEL, state):
                names.add(name)
                summed = total.get(name)
                if path is not paths[0] and (summed is None or summed.shape != array.shape):
                    raise damaged_error(path / MODEL, f"{expected}; got {name} of shape {array.shape}")
                total[name] = array.astype(npx.float64) if summed is None else summed + array
                if path is paths[-1]:
                    total[name] = (total[name] / last).astype(array.dtype)
            if missing := total.keys() - names:
                raise damaged_error(path / MODEL, f"{expected}; got a file without {min(missing)}")
        state = {key: states[-1][key] for key in (*IDENTITY, *RUN_IDENTITY) if key in states[-1]}
        state |= {"averaged_steps": [state["step"] for state in states], "averaged_best": best}
        state |= {"averaged_digests": [weights_digest(state) for state in states]}
        lock.check()
        write_folder(run.averaged_path, {MODEL: total}, state)
    return run.averaged_path
