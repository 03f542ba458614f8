"""The best weights of a run that resumes from a checkpoint.

checkpoints/best and best-N are written after a validation, before the next checkpoint. If the run is killed in between,
they are newer than its last checkpoint. The resumed run may have other settings or end earlier, so it does not
necessarily get the same weights again.
"""

from collections.abc import Iterable
from pathlib import Path

from train.errors import UserError
from train.run.checkpoint import MODEL, load_checkpoint, readable_states
from train.run.folder import RunFolder
from train.run.folder_swap import existing_folder
from train.run.state import RunState
from train.run.storage import write_folder


def can_restore_best(run: RunFolder, best_step: int) -> bool:
    """Return whether checkpoints/best has the weights of step `best_step`, or `restore_best` can copy them to it."""
    return best_folder_step(run) > 0 and find_weights(run, best_step) is not None


def forget_lost_best(run: RunFolder, state: RunState, metric: str) -> list[str]:
    """Remove results from `state` whose weights are lost, and return a warning if these include the best result.

    Other weights in checkpoints/best stay there until the next validation, whose weights replace them.
    `metric` selects checkpoints/best; with "", that folder is not in use.
    """
    state.ranking = {
        step: values
        for step, values in state.ranking.items()
        # a folder that is unreadable now may be readable later
        if existing_folder(run.ranked_path(int(step))).is_dir() or find_weights(run, int(step))
    }
    if not has_other_best(run, state, metric) or can_restore_best(run, state.best_step):
        return []
    best_step = state.best_step
    state.best_loss, state.best_score, state.best_step = None, None, 0
    if not best_step:
        return []
    return [
        f"warning: the weights of step {best_step:,}, the best up to step {state.step:,}, have been replaced; the next "
        "validation counts as the best so far"
    ]


def restore_best(run: RunFolder, state: RunState, metric: str, keys: Iterable[str]) -> list[str]:
    """Copy the weights of the best step and of the ranking in `state` to checkpoints/best and best-N.

    Weights of a later step in checkpoints/best move to best-N (see `surplus_best`). `keys` are the keys of state.json
    to copy. Returns a warning for each folder that cannot be copied.
    """
    warnings = []
    best, source_of_best = run.best_path, find_weights(run, state.best_step)
    copies = {run.ranked_path(int(step)): find_weights(run, int(step)) for step in state.ranking}
    if has_other_best(run, state, metric) and source_of_best:
        copies = {run.ranked_path(best_folder_step(run)): best} | copies | {best: source_of_best}
    for target, source in copies.items():
        if source is None or (target != best and existing_folder(target).is_dir()):
            continue
        try:
            checkpoint = load_checkpoint(source, with_optimizer=False)
            content = {key: checkpoint.state[key] for key in keys if key in checkpoint.state}
            write_folder(target, {MODEL: checkpoint.weights}, content)
        except UserError as error:
            warnings.append(f"{error}; training continues; {target.name} is not saved")
    return warnings


def best_folder_step(run: RunFolder) -> int:
    """Return the step of checkpoints/best; 0 if it is missing or unreadable."""
    return next((content["step"] for _, content in readable_states([existing_folder(run.best_path)])), 0)


def find_weights(run: RunFolder, step: int) -> Path | None:
    """Return a folder with the weights of a step that has been validated: best, best-N or step-N; or None."""
    folders = map(existing_folder, (run.best_path, run.ranked_path(step), run.step_path(step)))
    return next((path for path, content in readable_states(folders) if content["step"] == step), None)


def has_other_best(run: RunFolder, state: RunState, metric: str) -> bool:
    """Return whether checkpoints/best is in use but has weights of another step than `state.best_step`."""
    return metric != "" and best_folder_step(run) not in (0, state.best_step)
