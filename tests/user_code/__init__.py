"""Operations and layers as first-time users write them, correct and wrong, with one plain input each.

They are checked with `check_layer(layer, x)` or `check_operation(f, x)`: plain shapes, standard normal numbers, no
strategies and no options. `python -m tests.user_code --runs 100` tries many seeds.
"""

from tests.user_code import right, right_arrays, right_layers, right_networks, right_sequences  # isort: skip
from tests.user_code import wrong, wrong_blocks, wrong_calls, wrong_inputs, wrong_layers, wrong_modes  # isort: skip
from tests.user_code import wrong_numbers, wrong_points  # isort: skip
from tests.user_code.base import RIGHT, WRONG, UserCode, central_difference_error, check
