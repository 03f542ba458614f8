"""What can be learned, by name: `TASKS`. A line for each task enters it."""

from train.tasks import translation
from train.tasks.task import TASKS, Task

__all__ = ["TASKS", "Task", "translation"]
