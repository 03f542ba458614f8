"""`TASKS`, the tasks by name. Each import registers a task; the keys of [data] are in the order of the imports."""

# isort: off
from train.tasks import translation
from train.tasks import language
from train.tasks import parsing
from train.tasks import encoder_tasks

# isort: on
from train.tasks.task import TASKS, Task

__all__ = ["TASKS", "Task", "encoder_tasks", "language", "parsing", "translation"]
