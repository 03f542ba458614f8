"""What newcomers write, right and wrong, and check with `check_layer(layer, x)` or `check_operation(f, x)` alone.

Nothing here is made for the kit: plain shapes, standard normal numbers, no strategy, no option. `python -m
tests.newcomers --runs 100` tries many seeds.
"""

from tests.newcomers import right, right_arrays, right_layers, right_networks
from tests.newcomers.newcomer import RIGHT, WRONG, Newcomer, check, naive
