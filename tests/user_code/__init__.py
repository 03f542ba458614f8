"""What newcomers write, right and wrong, and check with `check_layer(layer, x)` or `check_operation(f, x)` alone.

Nothing here is made for the kit: plain shapes, standard normal numbers, no strategy, no option. `python -m
tests.user_code --runs 100` tries many seeds.
"""

from tests.user_code import right, right_arrays, right_layers, right_networks, right_sequences  # isort: skip
from tests.user_code import wrong, wrong_blocks, wrong_calls, wrong_layers, wrong_modes  # isort: skip
from tests.user_code import wrong_numbers, wrong_points  # isort: skip
from tests.user_code.base import RIGHT, WRONG, Newcomer, check, naive
