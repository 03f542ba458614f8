"""Remove the checkpoints of a run that are no longer kept."""

from pathlib import Path

from train.run.checkpoint import readable_states
from train.run.folder import RunFolder, step_of
from train.run.folder_swap import remove_folder
from train.run.state import RunState


def prune(run: RunFolder, keep_last: int, state: RunState) -> list[str]:
    """Remove the surplus folders step-N and best-N, and return a warning for each one that cannot be removed."""
    warnings = []
    for path in surplus_checkpoints(run, keep_last, state.step) + surplus_best(run, state):
        try:
            remove_folder(path)
        except OSError as error:
            warnings.append(f"warning: {path} cannot be removed ({error.strerror}); training continues")
    return warnings


def surplus_checkpoints(run: RunFolder, keep_last: int, step: int) -> list[Path]:
    """Return all but the newest `keep_last` checkpoints (0 keeps all), and every extra one that is not the newest.

    A run that is interrupted between two scheduled checkpoints writes an extra one. Extra checkpoints are removed
    later, so the run ends with the same checkpoints as an uninterrupted one. The last checkpoint of a finished run is
    not extra. Damaged checkpoints do not count toward `keep_last`. If fewer than `keep_last` are intact, only extra
    ones are removed, because a disk that returned an error may recover.

    Only checkpoints up to `step`, the present step of the run, are considered. Later ones are damaged, because the run
    resumed from an earlier one. They stay until the run replaces them.
    """
    paths = [path for path in run.step_paths() if step_of(path) <= step]
    states = dict(readable_states(paths))
    extra = [path for path in [*states][:-1] if states[path].get("extra")]
    intact = [step_of(path) for path in states if path not in extra]
    oldest = intact[-keep_last] if 0 < keep_last <= len(intact) else 0
    return [path for path in paths if path in extra or step_of(path) < oldest]


def surplus_best(run: RunFolder, state: RunState) -> list[Path]:
    """Return the folders best-N that are not in the ranking.

    A killed run may have written some that are newer than its last checkpoint. They remain until the resumed run has
    repeated step N.
    """
    last = max(state.valid_step, state.step - 1)  # the last step whose validation, if any, is complete
    return [path for path in run.ranked_paths() if step_of(path) <= last and str(step_of(path)) not in state.ranking]
